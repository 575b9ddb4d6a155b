#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace penstock::cli {

/// What has `shell` (bash, zsh or fish) ask `penstock --complete` for words.
std::string completion_script(const std::string& shell);

/// A line for each command and option that may follow these words of a command line: the word, a space, what
/// it means.
std::string completions(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace penstock::cli
