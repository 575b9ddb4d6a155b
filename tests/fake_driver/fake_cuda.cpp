#include "fake_cuda.hpp"

extern "C" FAKE_CUDA_EXPORT int fake_cuda_abi_version() { return 1; }
