#include "feed_verify.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/device/topology.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace penstock::cli {

namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kChunkBytes = kMiB;
constexpr unsigned kMostThreads = 8;

using Clock = std::chrono::steady_clock;

std::size_t aligned(std::size_t bytes) { return align_up(bytes, kAlignment); }

}  // namespace

Verifier::Promise Verifier::promise_of(const Field& field, const FieldPlan& plan) {
  return {.field = field,
          .to = plan.to,
          .elements = plan.sample_elements,
          .stored_bytes = field.sample_bytes(),
          .bytes = plan.delivered_bytes,
          .converts = plan.to != field.dtype || !plan.factors.empty(),
          .factors = plan.factors,
          .chunk = std::max<std::size_t>(1, kChunkBytes / plan.delivered_bytes)};
}

std::optional<Verifier::Difference> Verifier::difference(std::span<const std::byte> arrived,
                                                         std::span<const std::byte> expected,
                                                         std::size_t sample_bytes, std::size_t first_row) {
  if (std::memcmp(arrived.data(), expected.data(), arrived.size()) == 0) return std::nullopt;
  const auto [a, e] = std::mismatch(arrived.begin(), arrived.end(), expected.begin());
  const auto at = static_cast<std::size_t>(a - arrived.begin());
  return Difference{first_row + at / sample_bytes, at % sample_bytes, *a, *e};
}

Verifier::Verifier(const Device& device, Dataset dataset, const FeedPlan& plan)
    : device_(device),
      dataset_(std::move(dataset)),
      batch_size_(plan.batch),
      host_pool_(make_device_pool(host_)),
      workers_(host_.host_workers(std::min(host_topology().processors, kMostThreads))) {
  std::size_t slot_bytes = 0, stored_bytes = 0, expected_bytes = 0;
  for (std::size_t i = 0; i < dataset_.field_count(); ++i) {
    const Promise& promise = promises_.emplace_back(promise_of(dataset_.field(i), plan.fields[i]));
    slot_bytes += aligned(promise.bytes * batch_size_);
    const std::size_t chunk = std::min(promise.chunk, batch_size_);
    stored_bytes = std::max(stored_bytes, promise.stored_bytes * chunk);
    if (promise.converts) expected_bytes = std::max(expected_bytes, promise.bytes * chunk);
    scales_.push_back(put(promise.factors.scale));
    shifts_.push_back(put(promise.factors.shift));
  }
  for (std::size_t i = 0; i < workers_->threads(); ++i) {
    comparers_.push_back({host_.create_stream(), host_pool_.allocate(stored_bytes),
                          host_pool_.allocate(expected_bytes), std::nullopt});
  }
  pinned_pool_ = make_pinned_pool(
      device_, {.budget_bytes = slots_.size() * aligned(slot_bytes) + kMiB, .segment_bytes = kAlignment});
  ring_.emplace(device_, *pinned_pool_, slots_.size(), slot_bytes);
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].pinned = &(*ring_)[i];
}

Buffer Verifier::put(const std::vector<float>& values) {
  Buffer buffer = host_pool_.allocate(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(buffer.data(), values.data(), buffer.size());
  return buffer;
}

void Verifier::require_promised(std::span<const DeviceField> fields, std::size_t samples) const {
  if (fields.size() != promises_.size() || samples == 0 || samples > batch_size_) {
    throw Error(
        fmt::format("Verification failed: a batch has {} samples with {} fields; at most {} samples with "
                    "{} fields were expected.",
                    samples, fields.size(), batch_size_, promises_.size()));
  }
  for (std::size_t i = 0; i < fields.size(); ++i) {
    Shape shape = promises_[i].field.shape;
    shape.insert(shape.begin(), samples);
    const DeviceField& field = fields[i];
    if (field.name == promises_[i].field.name && field.dtype == promises_[i].to && field.shape == shape &&
        field.bytes == samples * promises_[i].bytes) {
      continue;
    }
    throw Error(fmt::format("Verification failed: {} {} {} of {} bytes was delivered; {} {} {} was expected.",
                            field.name, dtype_name(field.dtype), format_shape(field.shape), field.bytes,
                            promises_[i].field.name, dtype_name(promises_[i].to), format_shape(shape)));
  }
}

void Verifier::check(std::uint64_t epoch, std::uint64_t batch, std::vector<std::uint64_t> indices,
                     std::span<const DeviceField> fields, const Stream& stream) {
  require_promised(fields, indices.size());
  Slot& slot = slots_[next_];
  std::byte* to = slot.pinned->data();
  for (const DeviceField& field : fields) {
    stream.copy(to, field.data, field.bytes, CopyDirection::d2h);
    to += aligned(field.bytes);
  }
  slot.pinned->sent(stream);
  slot.epoch = epoch;
  slot.batch = batch;
  slot.indices = std::move(indices);
  slot.under_way = true;
  next_ = (next_ + 1) % slots_.size();
  compare(slots_[next_]);  // leaves it free for the next batch
}

void Verifier::finish() {
  for (Slot& slot : slots_) compare(slot);
}

void Verifier::compare(Slot& slot) {
  if (!slot.under_way) return;
  slot.pinned->wait();
  slot.under_way = false;
  const auto begin = Clock::now();
  const std::byte* arrived = slot.pinned->data();
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < promises_.size(); ++i) {
    const std::span<const std::byte> field(arrived, slot.indices.size() * promises_[i].bytes);
    compare_field(slot, i, field);
    arrived += aligned(field.size());
    bytes += field.size();
  }
  account_.batches += 1;
  account_.samples += slot.indices.size();
  account_.bytes += bytes;
  account_.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

void Verifier::compare_field(const Slot& slot, std::size_t field, std::span<const std::byte> arrived) {
  for (Comparer& comparer : comparers_) comparer.found.reset();
  workers_->for_each(comparers_.size(),
                     [&](std::size_t i) { compare_chunks(comparers_[i], slot, field, arrived, i); });
  const Difference* first = nullptr;
  for (const Comparer& comparer : comparers_) {
    if (comparer.found && (first == nullptr || comparer.found->row < first->row)) first = &*comparer.found;
  }
  if (first == nullptr) return;
  throw Error(fmt::format(
      "Verification failed: epoch {}, batch {}, sample {} (number {} of the batch), "
      "field {}, byte {} of the sample: 0x{:02x} was delivered, 0x{:02x} was expected.",
      slot.epoch, slot.batch, slot.indices[first->row], first->row, promises_[field].field.name, first->byte,
      static_cast<unsigned>(first->arrived), static_cast<unsigned>(first->expected)));
}

void Verifier::compare_chunks(Comparer& comparer, const Slot& slot, std::size_t field,
                              std::span<const std::byte> arrived, std::size_t first_chunk) {
  const Promise& promise = promises_[field];
  const std::span<const std::uint64_t> indices(slot.indices);
  for (std::size_t row = first_chunk * promise.chunk; row < indices.size() && !comparer.found;
       row += comparers_.size() * promise.chunk) {
    const std::size_t rows = std::min(promise.chunk, indices.size() - row);
    const auto expected = expect(comparer, field, indices.subspan(row, rows));
    comparer.found =
        difference(arrived.subspan(row * promise.bytes, rows * promise.bytes), expected, promise.bytes, row);
  }
}

std::span<const std::byte> Verifier::expect(Comparer& comparer, std::size_t field,
                                            std::span<const std::uint64_t> indices) const {
  const Promise& promise = promises_[field];
  const auto stored = comparer.stored.bytes().first(indices.size() * promise.stored_bytes);
  dataset_.gather(field, indices, stored);
  if (!promise.converts) return stored;
  const auto floats = [](const Buffer& buffer) {
    return buffer.empty() ? nullptr : reinterpret_cast<const float*>(buffer.data());
  };
  GatherRequest request;
  request.source = stored.data();
  request.source_rows = request.count = indices.size();
  request.row_elements = promise.elements;
  request.destination = comparer.expected.data();
  request.from = promise.field.dtype;
  request.to = promise.to;
  request.scale = floats(scales_[field]);
  request.shift = floats(shifts_[field]);
  request.channels = promise.factors.channels;
  request.channel_elements = promise.factors.channel_elements;
  comparer.stream.gather(request);
  comparer.stream.synchronize();
  return comparer.expected.bytes().first(indices.size() * promise.bytes);
}

void Verifier::check(const DeviceBatch& batch, const Stream& stream) {
  std::vector<DeviceField> fields;
  fields.reserve(batch.field_count());
  for (std::size_t i = 0; i < batch.field_count(); ++i) fields.push_back(batch.field(i));
  check(batch.epoch(), batch.index(), batch.indices(), fields, stream);
}

}  // namespace penstock::cli
