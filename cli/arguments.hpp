#pragma once

#include "commands.hpp"

#include <CLI/CLI.hpp>

namespace penstock::cli {

/// The command's options; `options` outlives `app`.
void add_feed(CLI::App& app, FeedOptions& options);

/// An option whose value is a size such as 64MiB. `name` is a literal.
CLI::Option* add_bytes(CLI::App& command, const char* name, std::size_t& bytes,
                       const std::string& description);
void add_device(CLI::App& command, std::string& device);

}  // namespace penstock::cli
