#include <penstock/core/error.hpp>
#include <penstock/core/permutation.hpp>
#include <penstock/data/packs.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

namespace penstock {

namespace {

constexpr std::size_t kBeingFilled = 16;
// Before the packs of the latest epochs: of the loader's epoch, the next one, and one that a program asks
// for.
constexpr std::size_t kPlansKept = 3;
constexpr std::size_t kMostSampleNumbers = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kMostValues = std::numeric_limits<std::int32_t>::max();  // cu_seqlens is int32

std::size_t value_bytes(const RaggedField& ragged) { return ragged.field.sample_bytes(); }

void check_same(const std::vector<RaggedField>& fields) {
  const RaggedField& first = fields.at(0);
  for (const RaggedField& other : fields) {
    if (other.samples.size() != first.samples.size()) {
      throw InvalidArgument(
          fmt::format("Field '{}' has {} samples, and '{}' has {}: packed fields have equal "
                      "numbers.",
                      first.field.name, first.samples.size(), other.field.name, other.samples.size()));
    }
    for (std::size_t i = 0; i < first.samples.size(); ++i) {
      const std::size_t values = first.samples[i].size() / value_bytes(first);
      const std::size_t others = other.samples[i].size() / value_bytes(other);
      if (values != others) {
        throw InvalidArgument(
            fmt::format("Sample {} of field '{}' has {} values, and that of '{}' has {}: "
                        "fields that are packed together have the same lengths.",
                        i, first.field.name, values, other.field.name, others));
      }
    }
  }
}

/// A pack reader's place in an epoch's plan.
const Packing::Pack& pack_at(const Packing::Plan& plan, std::uint64_t epoch, std::uint64_t index) {
  if (index < plan.packs.size()) return plan.packs[static_cast<std::size_t>(index)];
  throw InvalidArgument(fmt::format("Pack {} of epoch {} was asked for; there are {}, counted from 0.", index,
                                    epoch, plan.packs.size()));
}

class PackReader : public FieldReader {
 public:
  PackReader(Field field, std::shared_ptr<const Packing> packing)
      : packing_(std::move(packing)), field_(std::move(field)) {}

  const Field& field() const noexcept override { return field_; }
  std::uint64_t sample_count() const noexcept override { return packing_->sample_count(); }
  bool varies_by_epoch() const noexcept override { return true; }  // no pack stays on the device
  std::optional<std::uint64_t> samples_in_epoch(std::uint64_t epoch) const override {
    return packing_->plan(epoch)->packs.size();
  }

  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind stores) const override {
    gather_in_epoch(0, indices, destination, stores);
  }
  void gather_in_epoch(std::uint64_t epoch, std::span<const std::uint64_t> indices,
                       std::span<std::byte> destination, StoreKind /*stores*/) const override {
    const auto plan = packing_->plan(epoch);
    const std::size_t bytes = destination.size() / indices.size();
    for (std::size_t i = 0; i < indices.size(); ++i) {
      write(pack_at(*plan, epoch, indices[i]), destination.data() + i * bytes);
    }
  }
  Shape shape_in_epoch(std::uint64_t epoch, std::uint64_t index) const override {
    return shape_of(pack_at(*packing_->plan(epoch), epoch, index));
  }

 protected:
  /// Writes as many values as shape_of says; the bytes behind them stay as they are.
  virtual void write(const Packing::Pack& pack, std::byte* to) const = 0;
  virtual Shape shape_of(const Packing::Pack& pack) const = 0;
  bool in_matrices() const noexcept { return packing_->options().values == 0; }

  const std::shared_ptr<const Packing> packing_;

 private:
  const Field field_;
};

Field packed_field(const Field& value, std::size_t most_values) {
  Field field = value;
  field.shape.insert(field.shape.begin(), most_values);
  return field;
}

class ValuesReader final : public PackReader {
 public:
  ValuesReader(RaggedField ragged, const std::shared_ptr<const Packing>& packing)
      : PackReader(packed_field(ragged.field, packing->most_values()), packing),
        value_bytes_(ragged.field.sample_bytes()),
        ragged_(std::move(ragged)) {}

 private:
  void write(const Packing::Pack& pack, std::byte* to) const override {
    const std::size_t row = in_matrices() ? pack.longest * value_bytes_ : 0;
    for (const std::uint32_t sample : pack.samples) {
      const std::span<const std::byte> values = ragged_.samples[sample];
      if (!values.empty()) std::memcpy(to, values.data(), values.size());
      to += values.size();
      if (row == 0) continue;
      std::memset(to, 0, row - values.size());
      to += row - values.size();
    }
  }

  Shape shape_of(const Packing::Pack& pack) const override {
    Shape shape = in_matrices() ? Shape{pack.samples.size(), pack.longest} : Shape{pack.values};
    shape.insert(shape.end(), ragged_.field.shape.begin(), ragged_.field.shape.end());
    return shape;
  }

  const std::size_t value_bytes_;
  const RaggedField ragged_;
};

class LengthsReader final : public PackReader {
 public:
  explicit LengthsReader(const std::shared_ptr<const Packing>& packing)
      : PackReader(
            packing->options().values == 0
                ? Field{.name = "lengths", .dtype = DType::int32, .shape = {packing->most_samples()}}
                : Field{.name = "cu_seqlens", .dtype = DType::int32, .shape = {packing->most_samples() + 1}},
            packing) {}

 private:
  void write(const Packing::Pack& pack, std::byte* to) const override {
    std::int32_t number = 0;
    const auto put = [&] {
      std::memcpy(to, &number, sizeof number);
      to += sizeof number;
    };
    if (!in_matrices()) put();
    for (const std::uint32_t sample : pack.samples) {
      const auto length = static_cast<std::int32_t>(packing_->length(sample));
      number = in_matrices() ? length : number + length;
      put();
    }
  }

  Shape shape_of(const Packing::Pack& pack) const override {
    return {pack.samples.size() + (in_matrices() ? 0 : 1)};
  }
};

/// A pack that is being filled.
struct Open {
  std::vector<std::uint32_t> samples;
  std::size_t values = 0;
  std::size_t longest = 0;

  void add(std::uint32_t sample, std::size_t length) {
    samples.push_back(sample);
    values += length;
    longest = std::max(longest, length);
  }
  void complete(Packing::Plan& plan) {
    // The plan's order is as long as it gets already, so that spans of it stay.
    const std::span<std::uint32_t> all(plan.order);
    const std::size_t begin = plan.packs.empty()
                                  ? 0
                                  : static_cast<std::size_t>(plan.packs.back().samples.data() +
                                                             plan.packs.back().samples.size() - all.data());
    std::ranges::copy(samples, all.begin() + static_cast<std::ptrdiff_t>(begin));
    plan.packs.push_back({all.subspan(begin, samples.size()), values, longest});
    plan.values += values;
    *this = {.samples = std::move(samples)};
    samples.clear();
  }
};

}  // namespace

Packing::Packing(const std::vector<RaggedField>& fields, const PackOptions& options) : options_(options) {
  check_same(fields);
  const RaggedField& ragged = fields.front();
  const std::string& name = ragged.field.name;
  if (ragged.samples.size() > kMostSampleNumbers) {
    throw InvalidArgument(fmt::format("Field '{}' has {} samples; at most {} can be packed.", name,
                                      ragged.samples.size(), kMostSampleNumbers));
  }
  std::size_t longest = 0;
  std::size_t all = 0;
  std::size_t with_values = 0;
  const std::size_t most = std::min(options_.values == 0 ? kMostValues : options_.values, kMostValues);
  for (const std::span<const std::byte> sample : ragged.samples) {
    const std::size_t values = sample.size() / value_bytes(ragged);
    if (values > most) {
      throw InvalidArgument(
          fmt::format("Sample {} of field '{}' has {} values, and a pack holds {}: cut the "
                      "sample into parts, or make packs larger.",
                      lengths_.size(), name, values, most));
    }
    lengths_.push_back(static_cast<std::uint32_t>(values));
    longest = std::max(longest, values);
    all += values;
    if (values == 0) continue;
    ++with_values;
    shortest_ = shortest_ == 0 ? values : std::min(shortest_, values);
  }
  if (all == 0) throw InvalidArgument(fmt::format("The samples of field '{}' have no values.", name));
  if (options_.values == 0) {
    most_samples_ = std::min(options_.samples, lengths_.size());
    most_values_ = most_samples_ * longest;
    if (most_values_ > kMostValues || options_.samples == 0 ||
        (options_.drop_last && options_.samples > lengths_.size())) {
      throw InvalidArgument(
          fmt::format("Matrices of {} of the {} samples of field '{}', the longest of which "
                      "has {} values, cannot be made: use smaller batches.",
                      options_.samples, lengths_.size(), name, longest));
    }
  } else {
    most_values_ = std::min(most, all);
    const double mean = static_cast<double>(all) / static_cast<double>(with_values);
    const auto on_average = static_cast<std::size_t>(static_cast<double>(most) / mean) + 1;
    most_samples_ = std::min(std::max(kBeingFilled, 4 * on_average), with_values);
  }
}

std::shared_ptr<const Packing::Plan> Packing::plan(std::uint64_t epoch) const {
  if (!options_.shuffle) epoch = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto known = plans_.find(epoch);
    if (known != plans_.end()) return known->second;
  }
  auto made = std::make_shared<const Plan>(make_plan(epoch));  // two threads may make the same one
  const std::lock_guard lock(mutex_);
  if (plans_.size() >= kPlansKept)
    plans_.erase(plans_.begin()->first > epoch ? --plans_.end() : plans_.begin());
  return plans_.emplace(epoch, std::move(made)).first->second;
}

Packing::Plan Packing::make_plan(std::uint64_t epoch) const {
  Plan plan;
  plan.order.resize(lengths_.size());
  options_.values == 0 ? pack_in_turn(epoch, plan) : pack_first_fit(epoch, plan);
  return plan;
}

/// Calls `take` with each sample, in the order of the epoch.
template <typename Take>
void Packing::in_order(std::uint64_t epoch, Take&& take) const {
  std::array<std::uint64_t, 4096> some;
  std::optional<KeyedPermutation> order;
  if (options_.shuffle) order.emplace(lengths_.size(), options_.seed, epoch);
  for (std::size_t first = 0; first < lengths_.size(); first += some.size()) {
    const std::size_t count = std::min(some.size(), lengths_.size() - first);
    if (order) order->fill(first, 1, std::span(some).first(count));
    for (std::size_t i = 0; i < count; ++i) take(static_cast<std::uint32_t>(order ? some[i] : first + i));
  }
}

void Packing::pack_first_fit(std::uint64_t epoch, Plan& plan) const {
  std::vector<Open> open;  // the oldest first
  const auto complete = [&](std::size_t i) {
    open[i].complete(plan);
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
  };
  in_order(epoch, [&](std::uint32_t sample) {
    const std::size_t length = lengths_[sample];
    if (length == 0) return;
    std::size_t i = 0;
    while (i < open.size() && open[i].values + length > most_values_) ++i;
    if (i == open.size()) {
      if (i == kBeingFilled) {
        complete(0);
        --i;
      }
      open.emplace_back();
    }
    open[i].add(sample, length);
    if (open[i].values + shortest_ > most_values_ || open[i].samples.size() == most_samples_) complete(i);
  });
  while (!open.empty()) complete(0);
}

void Packing::pack_in_turn(std::uint64_t epoch, Plan& plan) const {
  Open open;
  in_order(epoch, [&](std::uint32_t sample) {
    open.add(sample, lengths_[sample]);
    if (open.samples.size() == most_samples_) open.complete(plan);
  });
  if (!open.samples.empty() && !options_.drop_last) open.complete(plan);
}

std::string Packing::describe(std::uint64_t epoch) const {
  const auto plan = this->plan(epoch);
  std::size_t room = 0;
  for (const Pack& pack : plan->packs) {
    room += options_.values == 0 ? pack.samples.size() * pack.longest : most_values_;
  }
  return fmt::format(
      "{} {} of up to {} values and {} samples in epoch {}, {:.1f} % full", plan->packs.size(),
      options_.values == 0 ? "matrices" : "packs", most_values_, most_samples_, epoch,
      100.0 * static_cast<double>(plan->values) / static_cast<double>(std::max<std::size_t>(room, 1)));
}

std::vector<FieldReaderPtr> read_packs(std::vector<RaggedField> fields,
                                       const std::shared_ptr<const Packing>& packing) {
  std::vector<FieldReaderPtr> readers;
  for (RaggedField& ragged : fields) {
    readers.push_back(std::make_shared<ValuesReader>(std::move(ragged), packing));
  }
  readers.push_back(std::make_shared<LengthsReader>(packing));
  return readers;
}

}  // namespace penstock
