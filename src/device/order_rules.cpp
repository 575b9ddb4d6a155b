#include "device/order_rules.hpp"

#include <penstock/core/error.hpp>

#include <fmt/format.h>

#include <string_view>

namespace penstock {

namespace {

void require(bool holds, std::string_view message) {
  if (!holds) throw InvalidArgument(fmt::format("this order cannot be computed: {}", message));
}

}  // namespace

void check_order(const OrderRequest& request) {
  const SampleRun& run = request.run;
  require(run.size != 0 && run.size <= KeyedPermutation::kMaximumSize,
          "it takes between 1 and 2^62 elements");
  require(!run.order || run.order->size() == run.size, "the permutation has another size");
  std::uint64_t end = 0;
  require(!__builtin_mul_overflow(run.count, run.stride, &end) &&
              !__builtin_add_overflow(end, run.first, &end) && end < std::uint64_t{1} << 63,
          "its positions end past 2^63");
  if (run.count == 0) return;
  require(request.indices != nullptr, "the indices are null");
  require(reinterpret_cast<std::uintptr_t>(request.indices) % sizeof(std::uint64_t) == 0,
          "the indices are not aligned to their type");
}

}  // namespace penstock
