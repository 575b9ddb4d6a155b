#pragma once

#include <penstock/core/function_ref.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace penstock {

/// Fills a span with a file's bytes from an offset on. Returns the bytes read: fewer only at the file's end.
using ReadAt = FunctionRef<std::size_t(std::uint64_t offset, std::span<std::byte> destination)>;

/// A regular file, open for reading. A handle: copies share the open file. Thread-safe: it has no position.
class File {
 public:
  /// Throws Error if the file cannot be opened or is not a regular file.
  explicit File(const std::filesystem::path& path);

  [[nodiscard]] const std::string& name() const noexcept { return state_->name; }
  /// Bytes, when it was opened.
  [[nodiscard]] std::uint64_t size() const noexcept { return state_->size; }
  /// When it was written last, in nanoseconds, as of when it was opened.
  [[nodiscard]] std::int64_t written() const noexcept { return state_->written; }
  /// The file's end now, after a read that ended at `reached`: there, or before it if nothing was read.
  [[nodiscard]] std::uint64_t end_before(std::uint64_t reached) const noexcept;
  [[nodiscard]] int descriptor() const noexcept { return state_->descriptor; }

  /// Fills `destination` from `offset` on. Returns the bytes read: fewer only at the end of the file. Throws
  /// Error if the system refuses.
  std::size_t read(std::uint64_t offset, std::span<std::byte> destination) const;

 private:
  struct State {
    ~State();
    std::string name;
    int descriptor = -1;
    std::uint64_t size = 0;
    std::int64_t written = 0;
  };
  std::shared_ptr<const State> state_;
};

/// Zeroed memory on pages of its own: locking it locks nothing else. On huge pages if the system gives them.
class HostPages {
 public:
  /// Throws OutOfMemory.
  explicit HostPages(std::size_t bytes);
  ~HostPages();
  HostPages(HostPages&& other) noexcept;
  HostPages& operator=(HostPages&&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace penstock
