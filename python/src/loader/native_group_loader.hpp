#pragma once

#include "loader/keeping_loader.hpp"
#include "loader/native_loader.hpp"
#include "move/group.hpp"

#include <penstock/loader/group_loader.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace penstock::python {

/// GroupLoader for Python: batches as lists of arrays, one list for each device that receives.
class NativeGroupLoader {
 public:
  NativeGroupLoader(const std::shared_ptr<Group>& group, const NativeLoader::Arrays& fields,
                    LoaderOptions options);

  /// For each device one array for each field, or None at the end of an epoch. Each device waits as in
  /// NativeLoader::next.
  [[nodiscard]] nb::object next();
  [[nodiscard]] KeepingLoader<GroupLoader>& loader() noexcept { return loader_; }

 protected:
  /// `receivers`: the first devices of the group.
  NativeGroupLoader(std::shared_ptr<Group> group, std::size_t receivers, GroupLoader loader);

 private:
  std::shared_ptr<Group> group_;
  KeepingLoader<GroupLoader> loader_;
};

/// The same for the first device of a group alone, over the links of all.
class NativeRelayLoader : public NativeGroupLoader {
 public:
  NativeRelayLoader(const std::shared_ptr<Group>& group, const NativeLoader::Arrays& fields,
                    LoaderOptions options);
};

}  // namespace penstock::python
