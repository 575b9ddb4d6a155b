#pragma once

#include "engine.hpp"
#include "keeping_loader.hpp"
#include "native_loader.hpp"

#include <penstock/loader/rank_loader.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace penstock::python {

/// This process's place in a group of processes, and its device.
struct RankOfGroup {
  std::shared_ptr<Engine> engine;
  std::string key;
  std::size_t rank = 0;
  std::size_t processes = 1;
  double timeout_seconds = 0;
};

/// RankLoader for Python: batches as lists of arrays.
class NativeRankLoader {
 public:
  NativeRankLoader(const RankOfGroup& group, const NativeLoader::Arrays& fields, LoaderOptions options);

  /// As NativeLoader::next.
  [[nodiscard]] nb::object next();
  [[nodiscard]] KeepingLoader<RankLoader>& loader() noexcept { return loader_; }

 private:
  std::shared_ptr<Engine> engine_;
  KeepingLoader<RankLoader> loader_;
};

}  // namespace penstock::python
