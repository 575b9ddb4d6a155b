#pragma once

#include <penstock/core/error.hpp>

#include <source_location>
#include <string>
#include <utility>

namespace penstock {

/// The system refused to open, read or write a file. `code()` is its errno.
class FileError : public Error {
 public:
  FileError(const std::string& message, std::string file, int code,
            std::source_location where = std::source_location::current())
      : Error(message, where), file_(std::move(file)), code_(code) {}
  [[nodiscard]] const std::string& file() const noexcept { return file_; }
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  std::string file_;
  int code_;
};

}  // namespace penstock
