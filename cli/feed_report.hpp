#pragma once

#include "feed_account.hpp"

#include <string>

namespace penstock::cli {

/// The account as one HTML page that loads nothing.
[[nodiscard]] std::string feed_report(const FeedAccount& account);

}  // namespace penstock::cli
