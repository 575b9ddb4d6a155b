#pragma once

#include "engine.hpp"
#include "kept_batch.hpp"
#include "native_loader.hpp"

#include <penstock/loader/rank_loader.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
  ~NativeRankLoader();
  NativeRankLoader(const NativeRankLoader&) = delete;
  NativeRankLoader& operator=(const NativeRankLoader&) = delete;

  /// As NativeLoader::next.
  [[nodiscard]] nb::object next();
  /// As those of NativeLoader. The end of an epoch does not wait for other processes; the next one begins
  /// with start_epoch, which does, unless all of the epoch was handed out.
  [[nodiscard]] bool next_into(nb::list made, const TensorWatch& watch);
  void start_epoch(std::uint64_t epoch);
  void restore(const SamplerState& state);
  void end_epoch(std::uint64_t epoch);
  [[nodiscard]] RankLoader& loader() noexcept { return *loader_; }
  void close();

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<const Stream> stream_;
  std::optional<RankLoader> loader_;
  KeptBatch<DeviceBatch> kept_;
};

}  // namespace penstock::python
