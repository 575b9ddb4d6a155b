#include "doctor/command/code_reader.hpp"

#include "cli/shared/run_program.hpp"

#include <penstock/core/error.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <sstream>
#include <string_view>
#include <utility>

namespace penstock::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostAddresses = 1000;  // of a question

/// A program whose output is read. It is gone when this object is.
class Asked {
 public:
  explicit Asked(std::vector<std::string> words) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
    output_ = ends[0];
    try {
      // Debug information would be fetched from a server otherwise.
      process_ = start_program(std::move(words), {.variables = {"DEBUGINFOD_URLS="}, .output = ends[1]}, {});
    } catch (const Error&) {  // it is not installed
    }
    ::close(ends[1]);
  }
  ~Asked() {
    if (output_ >= 0) ::close(output_);
    if (process_ < 0) return;
    ::kill(process_, SIGKILL);
    while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

  [[nodiscard]] bool started() const noexcept { return process_ >= 0; }

  /// What it printed up to its end, or until then.
  std::string answer(Clock::time_point deadline) {
    std::string text;
    std::array<char, 4096> bytes{};
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      pollfd ready{output_, POLLIN, 0};
      const int count = left.count() > 0 ? ::poll(&ready, 1, static_cast<int>(left.count())) : 0;
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return text.substr(0, text.rfind('\n') + 1);  // the last line may be a part of one
      const ssize_t got = ::read(output_, bytes.data(), bytes.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return text;
      text.append(bytes.data(), static_cast<std::size_t>(got));
    }
  }

 private:
  int output_ = -1;
  pid_t process_ = -1;
};

std::string ask(const std::filesystem::path& file, std::span<const std::uint64_t> addresses,
                Clock::time_point deadline) {
  for (const char* const program : {"llvm-addr2line", "addr2line"}) {
    std::vector<std::string> words{program, "-a", "-f", "-C", "-i", "-e", file.string()};
    for (const std::uint64_t address : addresses) words.push_back(fmt::format("{:#x}", address));
    Asked asked(std::move(words));
    if (asked.started()) return asked.answer(deadline);
  }
  return {};
}

/// "train.cpp:12 (discriminator 3)"; "??:0" and "??:?" are not known.
void read_line(std::string_view text, CodePlace& place) {
  text = text.substr(0, text.rfind(" (discriminator "));
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || text.starts_with("??")) return;
  const std::string_view number = text.substr(colon + 1);
  std::uint32_t line = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), line);
  if (error != std::errc() || end != number.data() + number.size()) return;
  place.file = text.substr(0, colon);
  place.line = line;
}

}  // namespace

LineReader::LineReader(std::chrono::milliseconds patience) : patience_(patience) {}

std::vector<std::vector<CodePlace>> LineReader::operator()(const std::filesystem::path& file,
                                                           std::span<const std::uint64_t> addresses) {
  auto& known = known_[file];
  std::vector<std::uint64_t> unknown;
  for (const std::uint64_t address : addresses) {
    if (!known.contains(address)) unknown.push_back(address);
  }
  for (std::size_t first = 0; first < unknown.size(); first += kMostAddresses) {
    const auto some = std::span(unknown).subspan(first, std::min(kMostAddresses, unknown.size() - first));
    const auto begin = Clock::now();
    std::vector<std::vector<CodePlace>> places = parse_lines(ask(file, some, begin + patience_));
    patience_ -= std::min(patience_, std::chrono::nanoseconds(Clock::now() - begin));
    places.resize(some.size());
    for (std::size_t i = 0; i < some.size(); ++i) known[some[i]] = std::move(places[i]);
  }
  std::vector<std::vector<CodePlace>> all;
  all.reserve(addresses.size());
  for (const std::uint64_t address : addresses) all.push_back(known.at(address));
  return all;
}

std::vector<std::vector<CodePlace>> parse_lines(const std::string& text) {
  // That of binutils takes the innermost name from the symbols, so that it may be the outermost's.
  const auto check_innermost = [](std::vector<CodePlace>& places) {
    if (places.size() > 1 && places.front().function == places.back().function) places.front().function = {};
  };
  std::vector<std::vector<CodePlace>> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("0x")) {
      if (!all.empty()) check_innermost(all.back());
      all.emplace_back();
      continue;
    }
    CodePlace place;
    if (line != "??") place.function = line.substr(0, line.find(" [clone "));
    if (!std::getline(in, line) || all.empty()) break;
    read_line(line, place);
    if (!place.function.empty()) all.back().push_back(std::move(place));
  }
  if (!all.empty()) check_innermost(all.back());
  return all;
}

}  // namespace penstock::cli
