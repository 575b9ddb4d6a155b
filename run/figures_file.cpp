#include "run/figures_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace penstock::run {

namespace {

void add(std::uint64_t& figure, std::uint64_t more) noexcept {
  __atomic_fetch_add(&figure, more, __ATOMIC_RELAXED);
}

void raise(std::uint64_t& figure, std::uint64_t value) noexcept {
  std::uint64_t before = __atomic_load_n(&figure, __ATOMIC_RELAXED);
  while (before < value &&
         !__atomic_compare_exchange_n(&figure, &before, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

/// Null if there is no folder, or no room in it.
Figures* map_file() {
  const char* const folder = std::getenv(kFiguresVariable);
  if (folder == nullptr || *folder == 0) return nullptr;
  std::string path = std::string(folder) + "/XXXXXX";
  const int file = ::mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return nullptr;
  void* mapped = MAP_FAILED;
  if (::posix_fallocate(file, 0, sizeof(Figures)) == 0)
    mapped = ::mmap(nullptr, sizeof(Figures), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  return mapped == MAP_FAILED ? nullptr : new (mapped) Figures;
}

}  // namespace

FiguresFile::FiguresFile() : figures_(map_file()) {
  if (figures_ == nullptr) figures_ = new Figures;
}

void FiguresFile::pass_on(Reason reason, std::size_t copies, std::size_t bytes) noexcept {
  add(figures_->passed_on[static_cast<std::size_t>(reason)], copies, bytes);
}

void add(Count& count, std::size_t copies, std::size_t bytes) noexcept {
  add(count.calls, copies);
  add(count.bytes, bytes);
}

void add(Timing& timing, std::size_t bytes, std::uint64_t nanoseconds) noexcept {
  add(timing.all, 1, bytes);
  if (nanoseconds == 0) return;
  add(timing.timed, 1, bytes);
  add(timing.nanoseconds, nanoseconds);
  raise(timing.best,
        static_cast<std::uint64_t>(static_cast<double>(bytes) * 1e9 / static_cast<double>(nanoseconds)));
}

}  // namespace penstock::run
