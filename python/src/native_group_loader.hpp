#pragma once

#include "group.hpp"
#include "native_loader.hpp"

#include <penstock/loader/group_loader.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::python {

/// GroupLoader for Python: batches as lists of arrays, one list for each device that receives.
class NativeGroupLoader {
 public:
  NativeGroupLoader(std::shared_ptr<Group> group, const NativeLoader::Arrays& fields, LoaderOptions options);
  ~NativeGroupLoader();
  NativeGroupLoader(const NativeGroupLoader&) = delete;
  NativeGroupLoader& operator=(const NativeGroupLoader&) = delete;

  /// For each device one array for each field, or None at the end of an epoch. Each device waits as in
  /// NativeLoader::next.
  [[nodiscard]] nb::object next();
  /// As those of NativeLoader.
  [[nodiscard]] bool next_into(nb::list made, const TensorWatch& watch);
  void start_epoch(std::uint64_t epoch);
  void restore(const SamplerState& state);
  void end_epoch(std::uint64_t epoch);
  [[nodiscard]] GroupLoader& loader() noexcept { return *loader_; }
  void close();

 protected:
  struct Relays {};  ///< the first device alone receives
  NativeGroupLoader(Relays relays, std::shared_ptr<Group> group, const NativeLoader::Arrays& fields,
                    LoaderOptions options);

 private:
  void add_streams(std::size_t receivers);

  std::shared_ptr<Group> group_;
  std::vector<std::shared_ptr<const Stream>> streams_;  ///< of the devices that receive, the first ones
  std::optional<GroupLoader> loader_;
  KeptBatch<std::vector<DeviceBatch>> kept_;
};

/// The same for the first device of a group alone, over the links of all.
class NativeRelayLoader : public NativeGroupLoader {
 public:
  NativeRelayLoader(std::shared_ptr<Group> group, const NativeLoader::Arrays& fields, LoaderOptions options)
      : NativeGroupLoader(Relays{}, std::move(group), fields, std::move(options)) {}
};

}  // namespace penstock::python
