#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace penstock::bench {

/// The bare CUDA driver, called as any program would, for comparison with the engine. Uses the context that
/// is current on the calling thread.
class RawDriver {
 public:
  /// The entries are null if there is no driver: see `present`.
  RawDriver();

  [[nodiscard]] bool present() const noexcept { return synchronize_ != nullptr; }
  /// Makes the primary context of device 0 current on this thread.
  void use_primary_context();
  void create_stream();

  void copy_to_device(void* device, const void* host, std::size_t bytes) const;
  void copy_to_host(void* host, const void* device, std::size_t bytes) const;
  void synchronize() const;
  [[nodiscard]] void* allocate_pinned(std::size_t bytes) const;
  void free_pinned(void* data) const;

 private:
  int (*to_device_)(std::uint64_t, const void*, std::size_t, void*) = nullptr;
  int (*to_host_)(void*, std::uint64_t, std::size_t, void*) = nullptr;
  int (*synchronize_)(void*) = nullptr;
  int (*create_)(void**, unsigned) = nullptr;
  int (*host_allocate_)(void**, std::size_t, unsigned) = nullptr;
  int (*host_free_)(void*) = nullptr;
  int (*retain_)(void**, int) = nullptr;
  int (*set_current_)(void*) = nullptr;
  int (*initialize_)(unsigned) = nullptr;
  void* stream_ = nullptr;
};

}  // namespace penstock::bench
