#include "native_group_loader.hpp"

#include "frameworks.hpp"

#include <utility>

namespace penstock::python {
namespace {

GroupLoader make_group_loader(const Group& group, Dataset dataset, LoaderOptions options) {
  const DeviceGroup devices = group.engine().group();
  GroupLinks links{.measured = group.measured()};
  for (const auto& engine : group.engines()) links.profiles.push_back(engine->transfers().profile());
  const nb::gil_scoped_release unlocked;
  return GroupLoader(std::move(dataset), devices, std::move(options), std::move(links));
}

}  // namespace

NativeGroupLoader::NativeGroupLoader(std::shared_ptr<Group> group, const NativeLoader::Arrays& fields,
                                     LoaderOptions options)
    : group_(std::move(group)),
      loader_(make_group_loader(*group_, make_dataset(fields), std::move(options))) {
  for (const auto& engine : group_->engines()) {
    streams_.push_back(std::make_shared<const Stream>(engine->device().create_stream()));
  }
}

NativeGroupLoader::~NativeGroupLoader() {
  // As a NativeLoader: its threads may release the arrays last.
  const nb::gil_scoped_release unlocked;
  loader_.reset();
}

nb::object NativeGroupLoader::next() {
  (void)group_->engine();  // throws in a forked process, and after close
  const auto& engines = group_->engines();
  Torch* const torch = Torch::get();
  const bool on_torch = torch != nullptr && engines.front()->is_cuda();
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    streams.push_back(engines[i]->device().wrap_stream(on_torch ? torch->current_stream(engines[i]->index())
                                                                : streams_[i]->native()));
  }
  std::optional<std::vector<DeviceBatch>> batches;
  {
    const nb::gil_scoped_release unlocked;
    batches = loader_->next(streams, &hear_signals);
    for (std::size_t i = 0; batches && !engines.front()->is_cuda() && i < engines.size(); ++i) {
      wait_for_host(engines[i]->device(), *streams_[i]);
    }
  }
  if (!batches) return nb::none();
  nb::list all;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const auto storage = std::make_shared<LeaseStorage>(
        engines[i]->device(), on_torch ? nullptr : streams_[i], std::move((*batches)[i]));
    const DeviceBatch& leased = storage->batch();
    nb::list arrays;
    for (std::size_t f = 0; f < leased.field_count(); ++f) {
      arrays.append(make_field(*engines[i], storage, leased.field(f)));
    }
    all.append(arrays);
  }
  return all;
}

void NativeGroupLoader::start_epoch(std::uint64_t epoch) {
  const nb::gil_scoped_release unlocked;
  loader_->start_epoch(epoch);
}

void NativeGroupLoader::close() {
  const nb::gil_scoped_release unlocked;
  loader_->close();
}

}  // namespace penstock::python
