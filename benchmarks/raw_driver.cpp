#include "raw_driver.hpp"

#include <penstock/core/error.hpp>

#include <dlfcn.h>
#include <fmt/format.h>

namespace penstock::bench {

namespace {

void check(int result, const char* call) {
  if (result != 0) throw DeviceError("CUDA_ERROR", call, result, "the bare driver refused");
}

}  // namespace

RawDriver::RawDriver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  const auto load = [&](auto& entry, const char* name) {
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(library, name));
    if (entry == nullptr) throw Unsupported(fmt::format("the driver has no {}", name));
  };
  load(initialize_, "cuInit");
  load(to_device_, "cuMemcpyHtoDAsync_v2");
  load(to_host_, "cuMemcpyDtoHAsync_v2");
  load(create_, "cuStreamCreate");
  load(host_allocate_, "cuMemHostAlloc");
  load(host_free_, "cuMemFreeHost");
  load(retain_, "cuDevicePrimaryCtxRetain");
  load(set_current_, "cuCtxSetCurrent");
  load(synchronize_, "cuStreamSynchronize");
}

void RawDriver::use_primary_context() {
  check(initialize_(0), "cuInit");
  void* context = nullptr;
  check(retain_(&context, 0), "cuDevicePrimaryCtxRetain");
  check(set_current_(context), "cuCtxSetCurrent");
}

void RawDriver::create_stream() { check(create_(&stream_, 1), "cuStreamCreate"); }

void RawDriver::copy_to_device(void* device, const void* host, std::size_t bytes) const {
  check(to_device_(reinterpret_cast<std::uint64_t>(device), host, bytes, stream_), "cuMemcpyHtoDAsync");
}

void RawDriver::copy_to_host(void* host, const void* device, std::size_t bytes) const {
  check(to_host_(host, reinterpret_cast<std::uint64_t>(device), bytes, stream_), "cuMemcpyDtoHAsync");
}

void RawDriver::synchronize() const { check(synchronize_(stream_), "cuStreamSynchronize"); }

void* RawDriver::allocate_pinned(std::size_t bytes) const {
  void* data = nullptr;
  check(host_allocate_(&data, bytes, 0), "cuMemHostAlloc");
  return data;
}

void RawDriver::free_pinned(void* data) const { check(host_free_(data), "cuMemFreeHost"); }

}  // namespace penstock::bench
