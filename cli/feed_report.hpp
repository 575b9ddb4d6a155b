#pragma once

#include "feed_account.hpp"

#include <optional>
#include <string>

namespace penstock::cli {

/// The account as one HTML page that loads nothing. `chart_library` is d3's text. Without it the page has
/// only tables and says what is missing.
[[nodiscard]] std::string feed_report(const FeedAccount& account,
                                      const std::optional<std::string>& chart_library);

}  // namespace penstock::cli
