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
  const Stream stream = stream_of_next(*engine_, *stream_);
  std::optional<DeviceBatch> batch = with_sampler_errors(loader_->options(), [&] {
    return kept_.next([&] { return loader_->next(stream, &hear_signals); },
                      [&] { wait_if_on_host(*engine_, stream); });
  });
  if (!batch) return nb::none();
  const auto storage = std::make_shared<LeaseStorage>(
      engine_->device(), is_for_torch(*engine_) ? nullptr : stream_, *std::move(batch));
  const DeviceBatch& leased = storage->batch();
  nb::list arrays;
  for (std::size_t f = 0; f < leased.field_count(); ++f) {
    arrays.append(make_field(*engine_, storage, leased.field(f)));
  }
  return arrays;
}

bool NativeRankLoader::next_into(nb::list made, const TensorWatch& watch) {
  if (!watch.unchanged()) return false;
  made.append(next());
  return true;
}

void NativeRankLoader::start_epoch(std::uint64_t epoch) {
  with_sampler_errors(loader_->options(), [&] { kept_.drop_and([&] { loader_->start_epoch(epoch); }); });
}

void NativeRankLoader::restore(const SamplerState& state) {
  kept_.drop_and([&] { loader_->restore(state); });
}

void NativeRankLoader::end_epoch(std::uint64_t /*epoch*/) {
  kept_.drop_and([&] { loader_->leave_epoch(); });
}

void NativeRankLoader::close() {
  kept_.drop_and([this] { loader_->close(); });
}

}  // namespace penstock::python
