#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace penstock::cli {

/// A script that completes the commands and options of `app` in `shell`: bash, zsh or fish.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace penstock::cli
