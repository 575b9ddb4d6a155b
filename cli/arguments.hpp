#pragma once

#include "cli/shared/arguments.hpp"
#include "commands.hpp"

namespace penstock::cli {

/// The command's options; `options` outlives `app`.
void add_feed(CLI::App& app, FeedOptions& options);

}  // namespace penstock::cli
