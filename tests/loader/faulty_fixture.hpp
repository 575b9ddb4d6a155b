#pragma once

#include "loader/loader_fixture.hpp"
#include "support/faulty_backend.hpp"

#include <cstddef>
#include <memory>
#include <optional>

namespace penstock::testing {

inline constexpr std::size_t kBatch = 8;  ///< samples, where a test does not need another number

/// The suite's device behind a decorator that fails and delays chosen calls, counts calls, and knows which
/// handles are alive. Loaders are made on `faulty_device_`.
class FaultyLoaderTest : public LoaderTest {
 protected:
  void SetUp() override {
    LoaderTest::SetUp();
    if (IsSkipped()) return;
    faulty_ = std::make_shared<FaultyBackend>(device_->shared_backend());
    faulty_device_.emplace(faulty_);
  }

  std::shared_ptr<FaultyBackend> faulty_;
  std::optional<Device> faulty_device_;
};

/// A way in which a loader can gather batches, for tests of all ways.
struct Way {
  GatherPath gather = GatherPath::host;
  const char* residency = "none";
};
inline constexpr Way kWays[] = {{GatherPath::host, "none"},      {GatherPath::host, "0.5"},
                                {GatherPath::host, "all"},       {GatherPath::zero_copy, "none"},
                                {GatherPath::zero_copy, "0.5"},  {GatherPath::copy_engine, "none"},
                                {GatherPath::copy_engine, "0.5"}};

inline std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << gather_path_name(way.gather) << ", " << way.residency << " resident";
}

}  // namespace penstock::testing
