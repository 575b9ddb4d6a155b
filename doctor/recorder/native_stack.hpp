#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// The functions of compiled code that a thread is in, for programs that are not written in Python. The
/// unwinder is the compiler's own, linked into this library. It takes no memory. It and `locate_code` take
/// the lock of glibc's list of libraries, so no other thread may fork meanwhile: see Places::before_fork.
namespace penstock::recorder {

class NativeStack {
 public:
  /// Leaves out the calls that a stack begins with as long as they are in the library of this address, or in
  /// another hidden one. For two libraries at most, before the first call of `own`.
  void hide(const void* address) noexcept;
  /// Fills `calls` with addresses of the calls that the thread is in, the innermost first, and returns their
  /// number.
  [[nodiscard]] std::size_t own(std::span<std::uintptr_t> calls) const noexcept;

 private:
  struct Library {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
  };
  class Walk;

  Library hidden_[2];
  std::size_t hidden_count_ = 0;
};

/// The file of the program or the library that has the code at `address`, written to `file` with a 0 behind
/// it, and the address that the code has there. False if there is none, or if its name does not fit.
[[nodiscard]] bool locate_code(std::uintptr_t address, std::span<char> file,
                               std::uint64_t& address_in_file) noexcept;

}  // namespace penstock::recorder
