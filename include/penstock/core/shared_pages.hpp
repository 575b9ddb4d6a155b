#pragma once

#include <cstddef>
#include <span>

namespace penstock {

/// Memory that several processes map: a file without a name. The system frees it once no process has it
/// mapped or open, however the last one ended. Pages are taken when they are written, on huge pages if the
/// system gives them, and are not written into core files. The size stays as it is. Move-only.
class SharedPages {
 public:
  /// Zeroed memory. `name` is shown in /proc/PID/maps. Throws InvalidArgument for 0 bytes, Unsupported if a
  /// limit or the system refuses.
  explicit SharedPages(std::size_t bytes, const char* name = "penstock-pages");
  /// Maps the pages of another process. `file` stays the caller's. Throws InvalidArgument if it is empty or
  /// not a file, Unsupported if it cannot be mapped.
  [[nodiscard]] static SharedPages attach(int file);
  /// Unmaps the memory: whoever uses it keeps the object.
  ~SharedPages();
  SharedPages(SharedPages&& other) noexcept;
  SharedPages& operator=(SharedPages&&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }
  /// The descriptor of the file, closed with this object.
  [[nodiscard]] int file() const noexcept { return file_; }

 private:
  SharedPages(int file, std::size_t bytes) noexcept : file_(file), bytes_(bytes) {}
  void map();

  int file_;
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace penstock
