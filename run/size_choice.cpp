#include "run/size_choice.hpp"

namespace penstock::run {

namespace {

constexpr std::uint64_t kTrials = 3;
constexpr double kWorthwhile = 1.05;

std::uint64_t read(const std::uint64_t& figure) noexcept {
  return __atomic_load_n(&figure, __ATOMIC_RELAXED);
}

}  // namespace

SizeChoice choose(const SizeFigures& figures, std::size_t bytes) noexcept {
  const bool gains = bytes >= kCertainGain;
  if (read(figures.driver.all.calls) < (gains ? 1 : kTrials)) return SizeChoice::compare;
  if (read(figures.taken.all.calls) < kTrials) return SizeChoice::take;
  const std::uint64_t driver = read(figures.driver.best);
  const std::uint64_t taken = read(figures.taken.best);
  if (driver == 0 || taken == 0) return gains ? SizeChoice::take : SizeChoice::leave;
  return static_cast<double>(taken) > kWorthwhile * static_cast<double>(driver) ? SizeChoice::take
                                                                                : SizeChoice::leave;
}

}  // namespace penstock::run
