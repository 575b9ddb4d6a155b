#pragma once

#include "group.hpp"
#include "native_loader.hpp"

#include <penstock/loader/group_loader.hpp>

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace penstock::python {

/// GroupLoader for Python: batches as lists of arrays, one list for each device.
class NativeGroupLoader {
 public:
  NativeGroupLoader(std::shared_ptr<Group> group, const NativeLoader::Arrays& fields, LoaderOptions options);
  ~NativeGroupLoader();
  NativeGroupLoader(const NativeGroupLoader&) = delete;
  NativeGroupLoader& operator=(const NativeGroupLoader&) = delete;

  /// For each device one array for each field, or None at the end of an epoch. Each device waits as in
  /// NativeLoader::next.
  [[nodiscard]] nb::object next();
  void start_epoch(std::uint64_t epoch);
  [[nodiscard]] GroupLoader& loader() noexcept { return *loader_; }
  void close();

 private:
  std::shared_ptr<Group> group_;
  std::vector<std::shared_ptr<const Stream>> streams_;
  std::optional<GroupLoader> loader_;
};

}  // namespace penstock::python
