#pragma once

#define FAKE_CUDA_EXPORT __attribute__((visibility("default")))

extern "C" FAKE_CUDA_EXPORT int fake_cuda_abi_version();
