#include "loader/native_rank_loader.hpp"

#include "interpreter_lock.hpp"
#include "signals.hpp"

#include <utility>

namespace penstock::python {
namespace {

RankLoader make_rank_loader(const RankOfGroup& group, Dataset dataset, LoaderOptions options) {
  options.profile = group.profile();
  const Unlocked unlocked;
  return RankLoader(std::move(dataset), group.engine->device(), group.group->options(), std::move(options));
}

}  // namespace

NativeRankLoader::NativeRankLoader(const RankOfGroup& group, const NativeLoader::Arrays& fields,
                                   LoaderOptions options)
    : engine_(group.engine),
      loader_(make_rank_loader(group, make_dataset(fields), std::move(options)), {engine_}) {}

nb::object NativeRankLoader::next() {
  engine_->refuse_closed();
  return loader_.next([&](const auto& leases) { return make_fields(*engine_, leases.front()); });
}

}  // namespace penstock::python
