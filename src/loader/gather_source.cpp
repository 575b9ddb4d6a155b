#include "loader/gather_source.hpp"

#include "loader/decoder_trial.hpp"
#include "loader/gaps.hpp"
#include "loader/plan_feed.hpp"
#include "loader/plan_rows.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/data/narrow.hpp>
#include <penstock/data/pictures.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kCheapToNarrow = std::size_t{512} << 20;

/// `dataset` with integer fields in their narrowest types, if finding those is cheap.
Dataset narrow_small_fields(const Dataset& dataset, HostWorkers& workers) {
  std::vector<std::shared_ptr<const FieldReader>> readers(dataset.field_count());
  for (std::size_t f = 0; f < readers.size(); ++f) {
    readers[f] = dataset.reader(f);
    const bool in_memory = !dataset.memory(f).empty() || dataset.is_strided(f);
    const std::size_t bytes = static_cast<std::size_t>(dataset.sample_count()) * dataset.sample_bytes(f);
    if (!in_memory || bytes > kCheapToNarrow) continue;
    const Dataset alone({readers[f]});
    readers[f] = narrow_integers(alone, {.copy_limit = kCheapToNarrow, .workers = &workers}).reader(0);
  }
  return Dataset(std::move(readers));
}

Dataset first_fields(const Dataset& dataset, std::size_t count) {
  std::vector<std::shared_ptr<const FieldReader>> readers;
  for (std::size_t f = 0; f < count; ++f) readers.push_back(dataset.reader(f));
  return Dataset(std::move(readers));
}

}  // namespace

GatherSource::GatherSource(Dataset dataset, Device device, const LoaderOptions& options,
                           const BatchOrder& order)
    : options_(options),
      device_(std::move(device)),
      profile_(options_.profile ? *options_.profile : LinkProfile::defaults(device_.info())),
      workers_(options_.workers ? options_.workers : device_.host_workers(options_.threads)),
      dataset_(options_.narrow && !options_.data_may_change ? narrow_small_fields(dataset, *workers_)
                                                            : std::move(dataset)) {
  FeedFacts facts = collect_facts(dataset_, device_, static_cast<std::size_t>(order.largest_batch()));
  make_decoders(facts);
  make_plan(facts);
  reserve_memory(facts);
  is_resident_ = plan_.resident_bytes == 0;

  resident_ = std::make_unique<Resident>(device_, *memory_, plan_);
  ring_ = std::make_shared<DeviceRing>(device_, memory_, plan_, options_, order.first.state());
  FeedContext context{.dataset = *travelling_,
                      .device = device_,
                      .plan = plan_,
                      .addresses = std::vector<FieldAddresses>(plan_.fields.size()),
                      .decoders = decoders_,
                      .split = resident_->split(),
                      .workers = *workers_,
                      .threads = threads_that_gather(),
                      .memory_bytes = options_.memory_bytes,
                      .stores = profile_.streaming_stores ? StoreKind::streaming : StoreKind::cached,
                      .gather_blocks = options_.gather_blocks,
                      .link_rate = profile_.ceiling(CopyDirection::h2d)};
  for (std::size_t f = 0; f < plan_.fields.size(); ++f) context.addresses[f].streamed = sources_.samples[f];
  resident_->set_addresses(context.addresses);
  producer_ = std::make_unique<Producer>(std::move(context), *ring_, *memory_, options_.prefetch_depth);
  // From here on nothing is allocated, except for slots that the ring adds while batches are kept.
}

/// Decoding takes processors, and copying the memory's bandwidth, which few threads use up.
unsigned GatherSource::threads_that_gather() const {
  if (options_.threads != 0) return options_.threads;
  return decodes(dataset_) ? HostWorkersOptions::kMostThreads : device_.info().tuning.gather_threads;
}

double GatherSource::link_ceiling() const noexcept {
  return profile_.measured ? profile_.ceiling(CopyDirection::h2d) : 0;
}

/// Makes a decoder for each field that the device is to decode, or may.
void GatherSource::make_decoders(FeedFacts& facts) {
  decoders_.resize(dataset_.field_count());
  for (std::size_t f = 0; f < decoders_.size(); ++f) {
    const JpegSource* const jpegs = dataset_.reader(f)->jpegs();
    if (jpegs == nullptr) continue;
    const bool may = jpegs->choice() == PictureDecoderChoice::automatic;
    if (may && options_.residency.kind != Residency::Kind::none) continue;
    try {
      make_decoder(f, facts);
    } catch (const Unsupported& missing) {
      if (!may) throw;
      facts.fields[f].not_decoder = fmt::format("; {}", missing.what());
    }
    const bool is_part = options_.batch_sampler || options_.shard.world_size > 1;
    if (may && decoders_[f] && !is_part) choose_decoder(f, facts.fields[f], facts.batch);
  }
}

void GatherSource::make_decoder(std::size_t f, FeedFacts& facts) {
  const JpegSource& jpegs = *dataset_.reader(f)->jpegs();
  const PictureSize size = jpegs.size();
  decoders_[f] = device_.make_jpeg_decoder({.pictures = facts.batch,
                                            .lanes = most_under_way(options_.prefetch_depth),
                                            .width = static_cast<std::uint32_t>(size.width),
                                            .height = static_cast<std::uint32_t>(size.height),
                                            .channels_first = jpegs.channels_first(),
                                            .bicubic = jpegs.bicubic(),
                                            .libraries = jpegs.libraries()});
  facts.fields[f].decoder = decoders_[f]->name();
}

void GatherSource::choose_decoder(std::size_t f, FieldFacts& facts, std::size_t batch) {
  const DecoderRates rates =
      try_decoders(dataset_, f, device_, *decoders_[f], *workers_, threads_that_gather(), batch);
  const std::string tried =
      fmt::format("in a trial {:.0f} a second on the device, {:.0f} on the host", rates.device, rates.host);
  if (rates.device > rates.host) {
    facts.decoder += ": " + tried;
    return;
  }
  decoders_[f] = nullptr;
  facts.decoder.clear();
  facts.not_decoder = "; " + tried;
}

/// Locks the memory that the device reads under the plan. Plans again while a lock or copy is refused.
void GatherSource::make_plan(FeedFacts& facts) {
  do {
    plan_without_gaps(facts);
    travelling_ = with_rows(dataset_, plan_);
    sources_ = lock_sources(plan_, *travelling_, device_, *workers_, facts);
  } while (sources_.refused);
  if (sources_.rows == nullptr) return;
  // The arrays that the rows were made of are not needed any more.
  travelling_ = with_rows(dataset_, plan_, {sources_.rows->data(), sources_.rows->size()}, sources_.rows);
  dataset_ = first_fields(*travelling_, dataset_.field_count());
}

/// Plans a feed in which no field has gaps between its samples but for columns, whose rows are made of what
/// lies there. If the data may change, the host gathers it where it lies.
void GatherSource::plan_without_gaps(FeedFacts& facts) {
  if (!options_.data_may_change) copy_apart_from(choose_columns(facts, options_), facts);
  try {
    plan_ = plan_feed(facts, options_, profile_);
  } catch (const OutOfMemory&) {
    if (facts.rows_refused || options_.data_may_change) throw;
    facts.rows_refused = true;
    copy_apart_from({}, facts);
    plan_ = plan_feed(facts, options_, profile_);
  }
}

/// Copies the fields with gaps that are none of `columns`.
void GatherSource::copy_apart_from(const std::vector<std::size_t>& columns, FeedFacts& facts) {
  const std::vector<std::size_t> copied = fields_with_gaps(dataset_, columns);
  if (copied.empty()) return;
  dataset_ = with_copies(dataset_, copied, *workers_);
  const FeedFacts now = collect_facts(dataset_, device_, facts.batch);
  for (const std::size_t f : copied) facts.fields[f] = now.fields[f];
}

/// Reserves in one piece, so that a tight budget is not lost between pieces. If the device has less than the
/// budget, fewer slots without staging on the device may be enough.
void GatherSource::reserve_memory(FeedFacts& facts) {
  memory_ = std::make_shared<Pool>(
      make_device_pool(device_, {.budget_bytes = plan_.budget_bytes,
                                 .segment_bytes = std::max(plan_.slot_bytes, std::size_t{1} << 20)}));
  try {
    memory_->reserve(plan_.reserved_bytes);
  } catch (const OutOfMemory&) {
    facts.device.memory_refused = true;
    plan_ = plan_feed(facts, options_, profile_);
  }
}

/// What is resident is moved once, though the thread may end meanwhile.
bool GatherSource::prepare(Account& account, FunctionRef<bool()> stopped) {
  producer_->drop_begun();
  if (is_resident_) return true;
  const double begin = account.now();
  is_resident_ = resident_->fill(*travelling_, plan_, profile_, workers_, stopped);
  if (is_resident_) account.count_resident(plan_.resident_bytes, account.now() - begin);
  return is_resident_;
}

bool GatherSource::fill(const Turn& turn, std::size_t /*receiver*/, DeviceSlot& slot, PublishedItem& item) {
  producer_->fill(turn, slot, item, may_be_written_);
  return true;
}

void GatherSource::close(std::uint64_t /*handed_out*/) {
  producer_->drop_begun();
  synchronize();
}

}  // namespace penstock
