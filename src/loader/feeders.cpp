#include "loader/feeders.hpp"

#include "core/shared/gather_rows.hpp"
#include "data/shared/block_reader.hpp"
#include "loader/decoder_trial.hpp"

#include <penstock/device/topology.hpp>

#include <algorithm>

namespace penstock {

namespace {

const std::byte* end_of(const CopyPiece& piece) {
  return static_cast<const std::byte*>(piece.source) + piece.bytes;
}

/// The more samples of a field are resident, the more blocks it takes to keep the link busy with the rest.
unsigned blocks_over_link(const FieldPlan& field, unsigned asked, const DeviceTuning& tuning) noexcept {
  if (asked != 0) return asked;
  const std::uint64_t blocks = field.converts() ? tuning.converting_blocks : tuning.copying_blocks;
  return static_cast<unsigned>(std::min<std::uint64_t>(
      blocks * (field.samples / (field.samples - field.resident_samples)), tuning.most_blocks));
}

/// A kernel's request for field `f` of a batch, without the address of the samples that stream.
GatherRequest gather_request(const FeedContext& context, std::size_t f, const BatchToFeed& batch) {
  const FieldPlan& field = context.plan.fields[f];
  const FieldAddresses& addresses = context.addresses[f];
  GatherRequest request;
  request.head = addresses.resident;
  request.head_rows = field.resident_samples;
  request.row_elements = field.sample_elements;
  request.count = batch.count;
  request.destination =
      field.is_rows() ? batch.copy.staging.data() + field.rows_offset : batch.slot.fields[f].data;
  request.from = field.stored.dtype;
  request.to = field.to;
  request.scale = addresses.scale;
  request.shift = addresses.shift;
  request.channels = field.factors.channels;
  request.channel_elements = field.factors.channel_elements;
  if (field.streams() && !field.staged_on_device) {
    request.blocks = blocks_over_link(field, context.gather_blocks, context.device.info().tuning);
  }
  return request;
}

/// Enqueues the kernel that writes the columns, from the batch's rows at `rows`.
void enqueue_split(const FeedContext& context, const BatchToFeed& batch, const void* rows) {
  SplitRequest request = context.split;
  request.rows = rows;
  request.count = batch.count;
  request.destination = batch.slot.memory.data();
  batch.copy.stream.split_rows(request);
}

/// The samples of a batch that cross the link, for a field whose samples the host lists.
class SampleList {
 public:
  SampleList(const FeedContext& context, std::size_t f)
      : f_(f),
        field_(context.plan.fields[f]),
        streamed_(field_.resident_samples > 0 ? context.plan.batch : 0) {}

  void choose(const BatchToFeed& batch) {
    samples_ = batch.indices;
    if (field_.resident_samples == 0) return;
    // The streamed samples lie side by side in the batch's order. Their numbers follow the resident ones.
    auto* const positions = reinterpret_cast<std::uint64_t*>(batch.staging.memory + field_.staging_positions);
    std::size_t streamed = 0;
    for (std::size_t i = 0; i < batch.indices.size(); ++i) {
      const std::uint64_t index = batch.indices[i];
      const bool resident = index < field_.resident_samples;
      positions[i] = resident ? index : field_.resident_samples + streamed;
      // Without a branch, which nobody could predict.
      streamed_[streamed] = index;
      streamed += resident ? 0 : 1;
    }
    samples_ = std::span(streamed_).first(streamed);
  }

  /// Enqueues the kernels that write the slot, reading the chosen samples side by side at `source`.
  void enqueue_kernels(const FeedContext& context, const BatchToFeed& batch, const std::byte* source) const {
    if (field_.is_rows() && field_.resident_samples == 0) return enqueue_split(context, batch, source);
    GatherRequest request = gather_request(context, f_, batch);
    request.source = source;
    request.source_rows = field_.resident_samples + samples_.size();
    if (field_.resident_samples > 0) {
      request.indices = reinterpret_cast<const std::uint64_t*>(batch.lists + field_.staging_positions -
                                                               context.plan.staging_indices);
    }
    batch.copy.stream.gather(request);
    if (field_.is_rows()) enqueue_split(context, batch, request.destination);
  }

  [[nodiscard]] std::size_t field_number() const noexcept { return f_; }
  [[nodiscard]] const FieldPlan& field() const noexcept { return field_; }
  [[nodiscard]] std::span<const std::uint64_t> samples() const noexcept { return samples_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return samples_.size() * field_.sample_bytes; }

 private:
  std::size_t f_;
  const FieldPlan& field_;
  std::vector<std::uint64_t> streamed_;
  std::span<const std::uint64_t> samples_;
};

/// Host threads gather the samples into the staging slot. Plain copies cross the link together in one copy. A
/// kernel converts the other fields, joins them with their resident samples, or splits rows.
class HostFeeder final : public Feeder {
 public:
  explicit HostFeeder(const FeedContext& context) : context_(context) {
    const FeedPlan& plan = context_.plan;
    for (std::size_t f = 0; f < plan.fields.size(); ++f) {
      if (plan.fields[f].by_host() && !plan.fields[f].by_decoder()) fields_.emplace_back(context_, f);
    }
    make_block_readers();
  }

  [[nodiscard]] bool looks_ahead() const noexcept override {
    return std::ranges::any_of(fields_, &GatheredField::reads_ahead);
  }

  void begin(const StagingSlot& staging, std::span<const std::uint64_t> indices) override {
    to_begin_.push_back({staging, indices});
  }

  void drop_begun() noexcept override {
    to_begin_.clear();
    for (GatheredField& gathered : fields_) {
      if (gathered.blocks) gathered.blocks->drop();
    }
  }

  std::size_t prepare(const BatchToFeed& batch) override {
    std::size_t bytes = 0;
    std::size_t pieces = 0;
    for (GatheredField& gathered : fields_) {
      gathered.list.choose(batch);
      const std::size_t samples = gathered.list.samples().size();
      if (gathered.blocks) {
        gathered.pieces = gathered.blocks->lanes();
      } else {
        gathered.piece_samples =
            reader_of(gathered).is_decoded()
                ? 1
                : rows_of_piece(samples, gathered.list.field().sample_bytes, context_.threads);
        gathered.pieces = (samples + gathered.piece_samples - 1) / gathered.piece_samples;
      }
      pieces += gathered.pieces;
      gathered.bytes = bytes_to_send(batch, gathered);
      bytes += gathered.bytes;
    }
    context_.workers.for_each(pieces, [&](std::size_t piece) { gather(batch, piece); }, context_.threads);
    to_begin_.clear();
    return bytes;
  }

  void enqueue(const BatchToFeed& batch) override {
    enqueue_plain_copies(batch);
    for (const GatheredField& gathered : fields_) {
      const FieldPlan& field = gathered.list.field();
      if (field.is_plain_copy()) continue;
      const std::byte* source = batch.staging.on_device + field.staging_offset;
      if (field.staged_on_device) {
        std::byte* const staging = batch.copy.staging.data() + field.device_staging_offset;
        batch.pacer.copy(staging, batch.staging.memory + field.staging_offset, gathered.bytes);
        batch.pacer.join();
        source = staging;
      }
      gathered.list.enqueue_kernels(context_, batch, source);
    }
  }

 private:
  struct GatheredField {
    GatheredField(const FeedContext& context, std::size_t f) : list(context, f) {}
    /// Which samples stream is found out batch by batch if some are resident.
    [[nodiscard]] bool reads_ahead() const noexcept {
      return blocks != nullptr && list.field().resident_samples == 0;
    }
    SampleList list;
    std::size_t piece_samples = 1;  ///< samples that one thread gathers at a time
    std::size_t pieces = 0;
    std::size_t bytes = 0;                ///< that cross the link
    std::unique_ptr<BlockReader> blocks;  ///< if some of its samples lie on a disk; a lane for each piece
  };
  struct BegunBatch {
    StagingSlot staging;
    std::span<const std::uint64_t> indices;
  };

  /// The page cache serves files that fit into memory. Of others, or if a budget is given, it would forget
  /// most samples before they are read again.
  void make_block_readers() {
    const auto bytes_of = [&](const GatheredField& field) {
      return static_cast<double>(BlockReader::bytes_of(reader_of(field)));
    };
    std::vector<GatheredField*> on_disk;
    double bytes = 0;
    for (GatheredField& gathered : fields_) {
      if (!gathered.list.field().on_disk) continue;
      on_disk.push_back(&gathered);
      bytes += bytes_of(gathered);
    }
    const auto budget = static_cast<double>(context_.memory_bytes.value_or(0));
    const bool past_cache = context_.memory_bytes || bytes > static_cast<double>(free_host_memory());
    for (GatheredField* gathered : on_disk) {
      gathered->blocks =
          std::make_unique<BlockReader>(context_.dataset.reader(gathered->list.field_number()), past_cache,
                                        static_cast<std::size_t>(budget * bytes_of(*gathered) / bytes),
                                        std::min<std::size_t>(context_.threads, context_.plan.batch));
    }
  }

  [[nodiscard]] const FieldReader& reader_of(const GatheredField& gathered) const {
    return *context_.dataset.reader(gathered.list.field_number());
  }

  [[nodiscard]] std::size_t bytes_to_send(const BatchToFeed& batch, const GatheredField& gathered) const {
    const FieldReader& reader = reader_of(gathered);
    const std::uint64_t epoch = batch.slot.run.epoch;
    if (batch.count != 1 || !reader.samples_in_epoch(epoch)) return gathered.list.bytes();
    const Shape shape = reader.shape_in_epoch(epoch, batch.indices[0]);
    return element_count(shape) * dtype_bytes(reader.field().dtype);
  }

  void gather(const BatchToFeed& batch, std::size_t piece) const {
    auto gathered = fields_.begin();
    for (; piece >= gathered->pieces; ++gathered) piece -= gathered->pieces;
    const auto samples = gathered->list.samples();
    if (gathered->blocks) return read(batch, *gathered, piece);
    const std::size_t first = piece * gathered->piece_samples;
    const std::size_t count = std::min(gathered->piece_samples, samples.size() - first);
    context_.dataset.gather(gathered->list.field_number(), samples.subspan(first, count),
                            place_of(batch.staging, gathered->list.field(), first, count), context_.stores,
                            batch.slot.run.epoch);
  }

  /// The lane's part of the batch, after the disk was asked for its parts of the batches that come next.
  void read(const BatchToFeed& batch, const GatheredField& gathered, std::size_t lane) const {
    const auto begin = [&](const StagingSlot& staging, std::span<const std::uint64_t> samples) {
      const std::size_t lanes = gathered.blocks->lanes();
      const std::size_t first = samples.size() * lane / lanes;
      const std::size_t count = samples.size() * (lane + 1) / lanes - first;
      gathered.blocks->begin(lane, samples.subspan(first, count),
                             place_of(staging, gathered.list.field(), first, count));
    };
    if (!gathered.reads_ahead()) {
      begin(batch.staging, gathered.list.samples());
    } else {
      for (const BegunBatch& begun : to_begin_) begin(begun.staging, begun.indices);
    }
    gathered.blocks->end(lane, context_.stores);
  }

  /// Of samples in a staging slot.
  static std::span<std::byte> place_of(const StagingSlot& staging, const FieldPlan& field, std::size_t first,
                                       std::size_t count) {
    return {staging.memory + field.staging_offset + first * field.sample_bytes, count * field.sample_bytes};
  }

  // These fields lie side by side, in the slot as in the staging slot. A field that is not full ends a copy.
  void enqueue_plain_copies(const BatchToFeed& batch) const {
    std::size_t begin = 0;
    std::size_t end = 0;
    const auto copy = [&] {
      if (end == begin) return;
      batch.pacer.copy(batch.slot.memory.data() + begin, batch.staging.memory + begin, end - begin);
      begin = end;
    };
    for (const GatheredField& gathered : fields_) {
      const FieldPlan& field = gathered.list.field();
      if (!field.is_plain_copy()) continue;
      if (end == begin) begin = field.slot_offset;
      end = field.slot_offset + gathered.bytes;
      if (gathered.bytes < batch.count * field.sample_bytes) copy();
    }
    copy();
  }

  const FeedContext& context_;
  std::vector<GatheredField> fields_;
  std::vector<BegunBatch> to_begin_;  ///< since the last batch was prepared
};

/// The copy engines fetch samples from page-locked memory into the slot, or into a kernel's staging buffer.
class CopyEngineFeeder final : public Feeder {
 public:
  explicit CopyEngineFeeder(const FeedContext& context) : context_(context) {
    const FeedPlan& plan = context_.plan;
    for (std::size_t f = 0; f < plan.fields.size(); ++f) {
      if (plan.fields[f].by_copy_engine()) lists_.emplace_back(context_, f);
    }
    copies_.reserve(plan.batch);
  }

  std::size_t prepare(const BatchToFeed& batch) override {
    std::size_t bytes = 0;
    for (SampleList& list : lists_) {
      list.choose(batch);
      bytes += list.bytes();
    }
    return bytes;
  }

  void enqueue(const BatchToFeed& batch) override {
    for (const SampleList& list : lists_) {
      const FieldPlan& field = list.field();
      std::byte* const destination = field.staged_on_device
                                         ? batch.copy.staging.data() + field.device_staging_offset
                                         : batch.slot.fields[list.field_number()].data;
      enqueue_copies(list, destination, batch);
      if (!field.staged_on_device) continue;
      batch.pacer.join();
      list.enqueue_kernels(context_, batch, destination);
    }
  }

 private:
  void enqueue_copies(const SampleList& list, std::byte* destination, const BatchToFeed& batch) {
    const FieldPlan& field = list.field();
    const std::byte* const streamed = context_.addresses[list.field_number()].streamed;
    copies_.clear();
    for (const std::uint64_t index : list.samples()) {
      const std::byte* const source = streamed + (index - field.resident_samples) * field.sample_bytes;
      if (!copies_.empty() && end_of(copies_.back()) == source) {
        copies_.back().bytes += field.sample_bytes;
      } else {
        copies_.push_back({source, destination, field.sample_bytes});
      }
      destination += field.sample_bytes;
    }
    batch.pacer.copy_each(copies_);
  }

  const FeedContext& context_;
  std::vector<SampleList> lists_;
  std::vector<CopyPiece> copies_;
};

/// A kernel gathers the samples: the resident ones from device memory, the others over the link.
class KernelFeeder final : public Feeder {
 public:
  explicit KernelFeeder(const FeedContext& context) : context_(context) {
    const FeedPlan& plan = context_.plan;
    for (std::size_t f = 0; f < plan.fields.size(); ++f) {
      if (plan.fields[f].by_kernel()) fields_.push_back(f);
    }
  }

  std::size_t prepare(const BatchToFeed& batch) override {
    std::size_t bytes = 0;
    for (const std::size_t f : fields_) {
      const FieldPlan& field = context_.plan.fields[f];
      const auto streams = [&](std::uint64_t index) { return index >= field.resident_samples; };
      if (field.in_two_parts()) {
        bytes += static_cast<std::size_t>(std::ranges::count_if(batch.indices, streams)) * field.sample_bytes;
      } else if (field.streams()) {
        bytes += batch.count * field.sample_bytes;
      }
    }
    return bytes;
  }

  void enqueue(const BatchToFeed& batch) override {
    const FeedPlan& plan = context_.plan;
    for (const std::size_t f : fields_) {
      GatherRequest request = gather_request(context_, f, batch);
      request.source = context_.addresses[f].streamed;
      request.source_rows = plan.fields[f].samples;
      request.indices = batch.order;
      batch.copy.stream.gather(request);
      if (plan.fields[f].is_rows()) enqueue_split(context_, batch, request.destination);
    }
  }

 private:
  const FeedContext& context_;
  std::vector<std::size_t> fields_;
};

/// Host threads read encoded pictures, which the device decodes and renders into the slot, or into a kernel's
/// staging buffer. They decode those that the device does not, whose rows are copied there.
class DecodeFeeder final : public Feeder {
 public:
  explicit DecodeFeeder(const FeedContext& context) : context_(context) {
    for (std::size_t f = 0; f < context_.plan.fields.size(); ++f) {
      if (context_.plan.fields[f].by_decoder()) fields_.emplace_back(context_, f);
    }
  }

  std::size_t prepare(const BatchToFeed& batch) override {
    std::size_t bytes = 0;
    for (DecodedField& decoded : fields_) {
      decoded.list.choose(batch);
      if (decoded.lanes.size() <= batch.staging.number) decoded.lanes.resize(batch.staging.number + 1);
      std::vector<Sample>& samples = decoded.lanes[batch.staging.number];
      samples.resize(std::max(samples.size(), batch.count));
      context_.workers.for_each(
          batch.count, [&](std::size_t i) { read(batch, decoded, i); }, context_.threads);
      for (std::size_t i = 0; i < batch.count; ++i) {
        bytes += samples[i].on_device ? samples[i].jpeg.file.size() : decoded.list.field().sample_bytes;
      }
    }
    return bytes;
  }

  void enqueue(const BatchToFeed& batch) override {
    for (DecodedField& decoded : fields_) {
      const FieldPlan& field = decoded.list.field();
      std::byte* const to = field.staged_on_device ? batch.copy.staging.data() + field.device_staging_offset
                                                   : batch.slot.fields[decoded.list.field_number()].data;
      render(batch, decoded, to);
      copy_rows(batch, decoded, to);
      if (field.staged_on_device) decoded.list.enqueue_kernels(context_, batch, to);
    }
  }

 private:
  struct Sample {
    JpegSample jpeg;
    bool on_device = false;
  };
  struct DecodedField {
    DecodedField(const FeedContext& context, std::size_t f)
        : list(context, f), source(*context.dataset.reader(f)->jpegs()), decoder(*context.decoders[f]) {}
    SampleList list;
    const JpegSource& source;
    JpegDecoder& decoder;
    std::vector<std::vector<Sample>>
        lanes{};  ///< of the staging slots: their files are read until it is free
    std::vector<JpegToRender> pictures{};
    std::vector<std::size_t> numbers{};  ///< of the pictures, in the batch
  };

  void read(const BatchToFeed& batch, DecodedField& decoded, std::size_t i) const {
    Sample& sample = decoded.lanes[batch.staging.number][i];
    sample.on_device = decoded.source.read(batch.slot.run.epoch, batch.indices[i], sample.jpeg);
    if (!sample.on_device) decode_on_host(batch, decoded, i);
  }

  void decode_on_host(const BatchToFeed& batch, const DecodedField& decoded, std::size_t i) const {
    const FieldPlan& field = decoded.list.field();
    context_.dataset.gather(
        decoded.list.field_number(), batch.indices.subspan(i, 1),
        {batch.staging.memory + field.staging_offset + i * field.sample_bytes, field.sample_bytes},
        context_.stores, batch.slot.run.epoch);
  }

  void render(const BatchToFeed& batch, DecodedField& decoded, std::byte* to) const {
    std::vector<Sample>& samples = decoded.lanes[batch.staging.number];
    decoded.pictures.clear();
    decoded.numbers.clear();
    for (std::size_t i = 0; i < batch.count; ++i) {
      if (!samples[i].on_device) continue;
      decoded.pictures.push_back(to_render(samples[i].jpeg, to + i * decoded.list.field().sample_bytes));
      decoded.numbers.push_back(i);
    }
    const std::vector<std::size_t> refused =
        decoded.decoder.render(batch.staging.number, decoded.pictures, batch.copy.stream);
    const auto decode = [&](std::size_t refusal) {
      decode_on_host(batch, decoded, decoded.numbers[refused[refusal]]);
    };
    context_.workers.for_each(refused.size(), decode, context_.threads);
    for (const std::size_t picture : refused) samples[decoded.numbers[picture]].on_device = false;
  }

  void copy_rows(const BatchToFeed& batch, const DecodedField& decoded, std::byte* to) {
    const FieldPlan& field = decoded.list.field();
    rows_.clear();
    for (std::size_t i = 0; i < batch.count; ++i) {
      if (decoded.lanes[batch.staging.number][i].on_device) continue;
      const std::size_t at = i * field.sample_bytes;
      rows_.push_back({batch.staging.memory + field.staging_offset + at, to + at, field.sample_bytes});
    }
    batch.copy.stream.copy_each(rows_, CopyDirection::h2d);
  }

  const FeedContext& context_;
  std::vector<DecodedField> fields_;
  std::vector<CopyPiece> rows_;
};

}  // namespace

std::vector<std::unique_ptr<Feeder>> make_feeders(const FeedContext& context) {
  const auto any = [&](auto travels) { return std::ranges::any_of(context.plan.fields, travels); };
  std::vector<std::unique_ptr<Feeder>> feeders;
  if (any(&FieldPlan::by_decoder)) feeders.push_back(std::make_unique<DecodeFeeder>(context));
  if (any(&FieldPlan::by_host)) feeders.push_back(std::make_unique<HostFeeder>(context));
  if (any(&FieldPlan::by_copy_engine)) feeders.push_back(std::make_unique<CopyEngineFeeder>(context));
  if (any(&FieldPlan::by_kernel)) feeders.push_back(std::make_unique<KernelFeeder>(context));
  return feeders;
}

}  // namespace penstock
