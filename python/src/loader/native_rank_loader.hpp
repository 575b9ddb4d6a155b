#pragma once

#include "loader/keeping_loader.hpp"
#include "loader/native_loader.hpp"
#include "move/engine.hpp"
#include "move/rank_of_group.hpp"

#include <penstock/loader/rank_loader.hpp>

#include <nanobind/nanobind.h>

#include <memory>

namespace penstock::python {

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
