#pragma once

#include <cstddef>
#include <source_location>
#include <stdexcept>
#include <string>

namespace penstock {

/// Base of everything penstock throws. `what()` tells the user what happened and what to do about it.
/// `where()` is the place in penstock's source that noticed.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, std::source_location where = std::source_location::current());
  [[nodiscard]] const std::source_location& where() const noexcept { return where_; }

 private:
  std::source_location where_;
};

/// The caller passed something that has no meaning: a null region, overlapping regions, an unknown name.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// The machine, the kernel or a limit refuses a call that works elsewhere. Nothing is left half-done, and the
/// caller may take another way.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// The object was closed, cancelled or destroyed before the work was done.
class Closed : public Error {
 public:
  using Error::Error;
};

/// A request did not fit. All figures are bytes. `used` and `free` are those of the pool, budget or device
/// that refused, when it refused. If both are 0, they are not known.
class OutOfMemory : public Error {
 public:
  /// `place` names what refused ("pinned pool", "device memory of cuda:0").
  OutOfMemory(const std::string& place, std::size_t asked, std::size_t used, std::size_t free,
              const std::string& advice = {}, std::source_location where = std::source_location::current());
  [[nodiscard]] std::size_t asked() const noexcept { return asked_; }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }
  [[nodiscard]] std::size_t free() const noexcept { return free_; }

 private:
  std::size_t asked_;
  std::size_t used_;
  std::size_t free_;
};

/// A device or its driver failed. `name()` is the driver's name of the error ("CUDA_ERROR_ILLEGAL_ADDRESS").
/// `call()` is the entry that returned it ("cuMemcpyHtoDAsync_v2").
class DeviceError : public Error {
 public:
  /// `detail`: what it means for the user and what to do, in sentences. The message begins with it.
  DeviceError(const std::string& name, const std::string& call, int code, const std::string& detail,
              std::source_location where = std::source_location::current());
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::string& call() const noexcept { return call_; }
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  std::string name_;
  std::string call_;
  int code_;
};

}  // namespace penstock
