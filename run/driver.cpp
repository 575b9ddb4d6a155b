#include "run/driver.hpp"

#include "run/interpose.hpp"

#include <dlfcn.h>

#include <array>

namespace penstock::run {

namespace {

using GetProcAddress = Result (*)(const char*, void**, int, std::uint64_t, int*);

/// Numbers of CUpointer_attribute, in the order of Pointer.
constexpr std::array kPointerAttributes = {1, 2, 8, 9};

}  // namespace

Driver::Driver(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  const auto get = reinterpret_cast<GetProcAddress>(real_dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) return;
  const auto find = [get](auto& function, const char* name, int version) {
    return get(name, reinterpret_cast<void**>(&function), version, 0, nullptr) == kSuccess &&
           function != nullptr;
  };
  complete_ = find(pointer_get_attributes_, "cuPointerGetAttributes", 7000) &&
              find(ctx_get_current_, "cuCtxGetCurrent", 4000) &&
              find(ctx_get_device_, "cuCtxGetDevice", 2000) &&
              find(primary_ctx_get_state_, "cuDevicePrimaryCtxGetState", 7000) &&
              find(primary_ctx_retain_, "cuDevicePrimaryCtxRetain", 7000) &&
              find(stream_is_capturing_, "cuStreamIsCapturing", 10000) &&
              find(stream_get_ctx_, "cuStreamGetCtx", 9020) && find(stream_query_, "cuStreamQuery", 2000) &&
              find(exchange_capture_mode_, "cuThreadExchangeStreamCaptureMode", 10010);
}

bool Driver::look_up(Address address, Pointer& pointer) const {
  std::array<void*, kPointerAttributes.size()> answers = {&pointer.context, &pointer.type, &pointer.managed,
                                                          &pointer.device};
  return pointer_get_attributes_(answers.size(), kPointerAttributes.data(), answers.data(), address) ==
         kSuccess;
}

Context Driver::current_context() const {
  Context context = nullptr;
  return ctx_get_current_(&context) == kSuccess ? context : nullptr;
}

bool Driver::current_device(Ordinal& device) const { return ctx_get_device_(&device) == kSuccess; }

Context Driver::primary_context(Ordinal device) const {
  unsigned flags = 0;
  int active = 0;
  if (primary_ctx_get_state_(device, &flags, &active) != kSuccess || active == 0) return nullptr;
  Context context = nullptr;
  return primary_ctx_retain_(&context, device) == kSuccess ? context : nullptr;
}

bool Driver::is_capturing(Stream stream) const {
  int status = 0;
  return stream_is_capturing_(stream, &status) != kSuccess || status != 0;
}

Context Driver::context_of(Stream stream) const {
  Context context = nullptr;
  return stream_get_ctx_(stream, &context) == kSuccess ? context : nullptr;
}

bool Driver::is_idle(Stream stream) const { return stream_query_(stream) == kSuccess; }

int Driver::exchange_capture_mode(int mode) const {
  exchange_capture_mode_(&mode);
  return mode;
}

}  // namespace penstock::run
