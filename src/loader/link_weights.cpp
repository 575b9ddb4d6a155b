#include "loader/link_weights.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

namespace penstock {

namespace {

// Of the fastest link's rate: links that are no slower get equal parts.
constexpr double kLike = 0.95;
constexpr double kFastest = 1e15;

/// Whole bytes per second, so that all processes have the same number; 0 if it was not measured.
std::uint64_t rate_of(const std::optional<LinkProfile>& profile) {
  if (!profile || !profile->measured) return 0;
  return static_cast<std::uint64_t>(std::min(profile->ceiling(CopyDirection::h2d), kFastest));
}

}  // namespace

std::vector<double> weights_of_links(const std::optional<LinkProfile>& profile, ProcessBoard& board) {
  std::vector<double> rates;
  for (const std::string& rate : board.exchange(std::to_string(rate_of(profile)))) {
    rates.push_back(static_cast<double>(std::stoull(rate)));
  }
  const auto [slowest, fastest] = std::ranges::minmax(rates);
  const bool is_even = slowest == 0 || slowest >= kLike * fastest;
  return is_even ? std::vector<double>(rates.size(), 1.0) : rates;
}

}  // namespace penstock
