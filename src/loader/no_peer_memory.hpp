#pragma once

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <string>
#include <utility>

namespace penstock {

/// The processes of a group cannot read each other's memory, and a batch sampler chooses the samples.
class NoPeerMemory : public Unsupported {
 public:
  explicit NoPeerMemory(std::string why)
      : Unsupported(fmt::format(
            "The processes of the group cannot read each other's memory ({}), and each would bring whole "
            "batches without a way to see whether their samplers agree. Give each a loader of its own "
            "without the group.",
            why)),
        why_(std::move(why)) {}
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

 private:
  std::string why_;
};

}  // namespace penstock
