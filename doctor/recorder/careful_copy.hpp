#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <span>

namespace penstock::recorder {

/// Copies memory that may be gone, and returns how many bytes there were before the first that is not. It
/// never faults. The pieces are the source of a system call that writes to our own memory, because the kernel
/// reads them as for any call of the program: the other direction is refused for memory that a driver mapped.
[[nodiscard]] inline std::size_t copy_pieces_carefully(std::span<const iovec> from,
                                                       std::span<char> to) noexcept {
  const iovec into{to.data(), to.size()};
  const ssize_t got = ::process_vm_writev(::getpid(), from.data(), from.size(), &into, 1, 0);
  return got < 0 ? 0 : static_cast<std::size_t>(got);
}
[[nodiscard]] inline std::size_t copy_carefully(const void* from, std::span<char> to) noexcept {
  const iovec piece{const_cast<void*>(from), to.size()};
  return copy_pieces_carefully(std::span(&piece, 1), to);
}

}  // namespace penstock::recorder
