#pragma once

#include "feed_account.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace penstock::cli {

/// The text of the first chart library that exists; nullopt if none does.
[[nodiscard]] std::optional<std::string> chart_library(const std::vector<std::filesystem::path>& places);

/// The account as one HTML page that loads nothing. `chart_library` is d3's text. Without it the page has
/// only tables and says what is missing.
[[nodiscard]] std::string feed_report(const FeedAccount& account,
                                      const std::optional<std::string>& chart_library);

}  // namespace penstock::cli
