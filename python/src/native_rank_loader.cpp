#include "native_rank_loader.hpp"

#include "frameworks.hpp"

#include <chrono>
#include <utility>

namespace penstock::python {
namespace {

RankLoader make_rank_loader(const RankOfGroup& group, Dataset dataset, LoaderOptions options) {
  const LinkProfile& profile = group.engine->transfers().profile();
  if (profile.measured) options.profile = profile;
  ProcessBoardOptions board{
      .meeting = {.key = group.key, .processes = group.processes, .while_waiting = &hear_signals},
      .rank = group.rank,
      .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(group.timeout_seconds * 1e3))};
  const nb::gil_scoped_release unlocked;
  return RankLoader(std::move(dataset), group.engine->device(), std::move(board), std::move(options));
}

}  // namespace

NativeRankLoader::NativeRankLoader(const RankOfGroup& group, const NativeLoader::Arrays& fields,
                                   LoaderOptions options)
    : engine_(group.engine),
      stream_(std::make_shared<const Stream>(engine_->device().create_stream())),
      loader_(make_rank_loader(group, make_dataset(fields), std::move(options))) {}

NativeRankLoader::~NativeRankLoader() {
  // As a NativeLoader: its threads may release the arrays last.
  const nb::gil_scoped_release unlocked;
  loader_.reset();
}

nb::object NativeRankLoader::next() {
  (void)engine_->transfers();  // throws in a forked process, and after close
  Torch* const torch = Torch::get();
  const bool on_torch = torch != nullptr && engine_->is_cuda();
  const Stream stream =
      engine_->device().wrap_stream(on_torch ? torch->current_stream(engine_->index()) : stream_->native());
  std::optional<DeviceBatch> batch;
  {
    const nb::gil_scoped_release unlocked;
    batch = loader_->next(stream, &hear_signals);
    if (batch && !engine_->is_cuda()) wait_for_host(engine_->device(), stream);
  }
  if (!batch) return nb::none();
  const auto storage =
      std::make_shared<LeaseStorage>(engine_->device(), on_torch ? nullptr : stream_, *std::move(batch));
  const DeviceBatch& leased = storage->batch();
  nb::list arrays;
  for (std::size_t f = 0; f < leased.field_count(); ++f) {
    arrays.append(make_field(*engine_, storage, leased.field(f)));
  }
  return arrays;
}

void NativeRankLoader::start_epoch(std::uint64_t epoch) {
  const nb::gil_scoped_release unlocked;
  loader_->start_epoch(epoch);
}

void NativeRankLoader::close() {
  const nb::gil_scoped_release unlocked;
  loader_->close();
}

}  // namespace penstock::python
