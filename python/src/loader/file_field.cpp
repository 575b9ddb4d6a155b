#include "loader/file_field.hpp"

#include "frameworks.hpp"
#include "interpreter_lock.hpp"
#include "loader/native_loader.hpp"
#include "move/rank_of_group.hpp"
#include "storage.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/permutation.hpp>
#include <penstock/data/chunks.hpp>
#include <penstock/data/open_dataset.hpp>
#include <penstock/data/packs.hpp>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

using NamedArrays = std::vector<std::pair<std::string, nb::object>>;

class RenamedReader final : public FieldReader {
 public:
  RenamedReader(std::string name, std::shared_ptr<const FieldReader> reader)
      : reader_(std::move(reader)), field_(reader_->field()) {
    field_.name = std::move(name);
  }

  [[nodiscard]] const Field& field() const noexcept override { return field_; }
  [[nodiscard]] std::uint64_t sample_count() const noexcept override { return reader_->sample_count(); }
  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind stores) const override {
    reader_->gather(indices, destination, stores);
  }
  void gather_in_epoch(std::uint64_t epoch, std::span<const std::uint64_t> indices,
                       std::span<std::byte> destination, StoreKind stores) const override {
    reader_->gather_in_epoch(epoch, indices, destination, stores);
  }
  [[nodiscard]] bool varies_by_epoch() const noexcept override { return reader_->varies_by_epoch(); }
  [[nodiscard]] std::optional<std::uint64_t> samples_in_epoch(std::uint64_t epoch) const override {
    return reader_->samples_in_epoch(epoch);
  }
  [[nodiscard]] Shape shape_in_epoch(std::uint64_t epoch, std::uint64_t index) const override {
    return reader_->shape_in_epoch(epoch, index);
  }
  [[nodiscard]] bool is_decoded() const noexcept override { return reader_->is_decoded(); }
  [[nodiscard]] const JpegSource* jpegs() const noexcept override { return reader_->jpegs(); }
  void add_failures(FeedStatistics& statistics) const override { reader_->add_failures(statistics); }
  [[nodiscard]] const std::byte* address(std::uint64_t index) const noexcept override {
    return reader_->address(index);
  }
  [[nodiscard]] std::span<const std::byte> memory() const noexcept override { return reader_->memory(); }
  [[nodiscard]] bool is_strided() const noexcept override { return reader_->is_strided(); }
  [[nodiscard]] std::span<const std::byte> allocation() const noexcept override {
    return reader_->allocation();
  }
  [[nodiscard]] bool is_file_mapping() const noexcept override { return reader_->is_file_mapping(); }

 private:
  std::shared_ptr<const FieldReader> reader_;
  Field field_;
};

class SampleStorage final : public Storage {
 public:
  explicit SampleStorage(std::size_t bytes) : bytes_(bytes) { data_ = bytes_.data(); }
  [[nodiscard]] std::span<std::byte> bytes() noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

std::vector<FileField> open_files(const std::filesystem::path& path, bool mapped) {
  const Unlocked unlocked;
  FileOptions options;
  if (mapped) options.load_limit = 0;
  const Dataset file = open_dataset({path}, options);
  std::vector<FileField> fields;
  for (std::size_t field = 0; field < file.field_count(); ++field) fields.push_back({file, field});
  return fields;
}

std::vector<std::uint64_t> numbers(const nb::bytes& bytes) {
  std::vector<std::uint64_t> values(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(std::uint64_t));
  return values;
}

std::vector<FieldReaderPtr> readers_of(const std::string& name, const nb::list& arrays) {
  std::vector<FieldReaderPtr> readers;
  for (const nb::handle array : arrays) {
    readers.push_back(make_dataset({{name, nb::borrow(array)}}).reader(0));
  }
  return readers;
}

FileField chunks_field(const std::string& name, const nb::list& arrays, const nb::bytes& rows) {
  return {Dataset({read_chunks(name, readers_of(name, arrays), numbers(rows))}), 0};
}

FileField draws_field(const std::string& name, const nb::list& arrays,
                      const std::vector<std::uint64_t>& shares, std::uint64_t seed) {
  return {Dataset({read_draws(name, readers_of(name, arrays), shares, seed)}), 0};
}

FileField windows_field(const std::filesystem::path& path, const std::string& dtype, std::size_t length,
                        std::size_t stride, bool mapped) {
  const Unlocked unlocked;
  const Field field{.name = "tokens", .dtype = parse_dtype(dtype), .shape = {length}};
  FileOptions options;
  if (mapped) options.load_limit = 0;
  return {Dataset({read_windows(path, field, stride * dtype_bytes(field.dtype), options)}), 0};
}

const Field& field_of(const FileField& self) { return self.file.field(self.field); }

nb::tuple shape_in_file(const FileField& self) {
  nb::list shape;
  shape.append(self.file.sample_count());
  for (const std::size_t extent : field_of(self).shape) shape.append(extent);
  return nb::tuple(shape);
}

nb::object sample(const FileField& self, std::int64_t index) {
  const auto count = static_cast<std::int64_t>(self.file.sample_count());
  if (index < -count || index >= count) throw nb::index_error("the dataset has fewer samples");
  const std::uint64_t indices[] = {static_cast<std::uint64_t>(index < 0 ? index + count : index)};
  const auto storage = std::make_shared<SampleStorage>(self.file.sample_bytes(self.field));
  self.file.gather(self.field, indices, storage->bytes());
  const Leaf leaf = describe(field_of(self).dtype, field_of(self).shape);
  return make_on_host(leaf, storage, storage->data(), Torch::get() != nullptr);
}

// name, dtype, shape of a value, addresses of the samples and their bytes (both of 64 bits), owner
using RaggedTuple =
    std::tuple<std::string, std::string, std::vector<std::size_t>, nb::bytes, nb::bytes, nb::object>;

RaggedField ragged_field(const RaggedTuple& given) {
  const auto& [name, dtype, shape, begins, bytes, owner] = given;
  RaggedField ragged{.field = {.name = name, .dtype = parse_dtype(dtype), .shape = shape},
                     .samples = {},
                     .keep_alive = keep_alive(owner)};
  const auto places = numbers(begins), sizes = numbers(bytes);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    ragged.samples.emplace_back(reinterpret_cast<const std::byte*>(places[i]), sizes[i]);
  }
  return ragged;
}

std::pair<std::shared_ptr<const Packing>, std::vector<FileField>> pack(const std::vector<RaggedTuple>& given,
                                                                       std::size_t values,
                                                                       std::size_t samples, bool shuffle,
                                                                       std::uint64_t seed, bool drop_last) {
  std::vector<RaggedField> fields;
  for (const RaggedTuple& one : given) fields.push_back(ragged_field(one));
  const Unlocked unlocked;
  const auto packing = std::make_shared<const Packing>(
      fields,
      PackOptions{
          .values = values, .samples = samples, .shuffle = shuffle, .seed = seed, .drop_last = drop_last});
  const Dataset packs(read_packs(std::move(fields), packing));
  std::vector<FileField> packed;
  for (std::size_t field = 0; field < packs.field_count(); ++field) packed.push_back({packs, field});
  return {packing, std::move(packed)};
}

/// Rows of a set that are in memory together: the samples of an epoch from `first` on.
struct Window {
  std::uint64_t epoch = 0;
  std::uint64_t first = 0;
  Dataset rows;
  std::vector<std::uint64_t> order;  ///< of the rows

  bool holds(std::uint64_t of_epoch, std::uint64_t position) const noexcept {
    return of_epoch == epoch && position - first < order.size();
  }
};

/// Asks a function of Python for windows. Keeps the two latest, since a batch may lie in both. Thread-safe.
class Windows {
 public:
  Windows(const NamedArrays& like, bool shuffle, std::uint64_t seed, const nb::object& make)
      : like_(make_dataset(like)),
        shuffle_(shuffle),
        seed_(seed),
        make_(make.ptr()),
        owner_(keep_alive(make)) {}

  const Dataset& like() const noexcept { return like_; }

  std::shared_ptr<const Window> at(std::uint64_t epoch, std::uint64_t position) {
    const std::lock_guard lock(mutex_);
    for (const auto& kept : kept_) {
      if (kept != nullptr && kept->holds(epoch, position)) return kept;
    }
    if (kept_[1] != nullptr) kept_[0] = std::move(kept_[1]);  // the next one may use its memory
    kept_[1] = make(epoch, position);
    return kept_[1];
  }

 private:
  std::shared_ptr<const Window> make(std::uint64_t epoch, std::uint64_t position) const {
    const Locked locked;
    return stay_if_ended([&] {
      try {
        const auto [first, arrays] = nb::cast<std::pair<std::uint64_t, NamedArrays>>(make_(epoch, position));
        Window made{.epoch = epoch, .first = first, .rows = make_dataset(arrays), .order = {}};
        made.order.resize(made.rows.sample_count());
        if (shuffle_) {
          KeyedPermutation(made.order.size(), seed_ + 1 + first, epoch).fill(0, 1, made.order);
        } else {
          std::iota(made.order.begin(), made.order.end(), std::uint64_t{0});
        }
        return std::make_shared<const Window>(std::move(made));
      } catch (const nb::python_error& error) {
        if (error.matches(PyExc_KeyboardInterrupt)) throw;
        throw Error(message_of(error.value()));
      }
    });
  }

  Dataset like_;
  bool shuffle_;
  std::uint64_t seed_;
  nb::handle make_;
  std::shared_ptr<const void> owner_;
  std::mutex mutex_;
  std::array<std::shared_ptr<const Window>, 2> kept_;  ///< the latest last
};

/// Sample i of an epoch is that at position i. A sampler asks for them in sequence.
class WindowsReader final : public FieldReader {
 public:
  WindowsReader(std::shared_ptr<Windows> windows, std::size_t f, std::uint64_t sample_count)
      : windows_(std::move(windows)), f_(f), sample_count_(sample_count) {}

  [[nodiscard]] const Field& field() const noexcept override { return windows_->like().reader(f_)->field(); }
  [[nodiscard]] std::uint64_t sample_count() const noexcept override { return sample_count_; }
  [[nodiscard]] bool varies_by_epoch() const noexcept override { return true; }
  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind stores) const override {
    gather_in_epoch(0, indices, destination, stores);
  }
  void gather_in_epoch(std::uint64_t epoch, std::span<const std::uint64_t> indices,
                       std::span<std::byte> destination, StoreKind stores) const override {
    std::array<std::uint64_t, 1024> rows;
    while (!indices.empty()) {
      const auto window = windows_->at(epoch, indices.front());
      const std::size_t most = std::min(indices.size(), rows.size());
      std::size_t count = 0;
      for (; count < most && window->holds(epoch, indices[count]); ++count) {
        rows[count] = window->order[indices[count] - window->first];
      }
      const std::size_t bytes = count * windows_->like().sample_bytes(f_);
      window->rows.gather(f_, std::span(rows).first(count), destination.first(bytes), stores);
      indices = indices.subspan(count);
      destination = destination.subspan(bytes);
    }
  }

 private:
  std::shared_ptr<Windows> windows_;
  std::size_t f_;
  std::uint64_t sample_count_;
};

std::vector<FileField> windows(const NamedArrays& like, std::uint64_t samples, bool shuffle,
                               std::uint64_t seed, const nb::object& make) {
  const auto shared = std::make_shared<Windows>(like, shuffle, seed, make);
  std::vector<FieldReaderPtr> readers;
  for (std::size_t f = 0; f < like.size(); ++f) {
    readers.push_back(std::make_shared<WindowsReader>(shared, f, samples));
  }
  const Dataset all(std::move(readers));
  std::vector<FileField> made;
  for (std::size_t f = 0; f < like.size(); ++f) made.push_back({all, f});
  return made;
}

}  // namespace

std::shared_ptr<const FieldReader> read_file_field(const std::string& name, nb::handle array) {
  if (!nb::isinstance<FileField>(array)) return nullptr;
  const auto& field = nb::cast<const FileField&>(array);
  return std::make_shared<RenamedReader>(name, field.file.reader(field.field));
}

void bind_file_field(nb::module_& module) {
  nb::class_<FileField>(module, "FileField",
                        "An array that the library reads: in a file, in chunks, or decoded.")
      .def_prop_ro("name", [](const FileField& self) { return field_of(self).name; })
      .def_prop_ro("dtype",
                   [](const FileField& self) { return std::string(dtype_name(field_of(self).dtype)); })
      .def_prop_ro("shape", &shape_in_file, nb::sig("def shape(self) -> tuple[int, ...]"))
      .def("__len__", [](const FileField& self) { return self.file.sample_count(); })
      .def("__getitem__", &sample, nb::arg("index"), "One sample, in memory of its own.");
  module.def("chunks_field", &chunks_field, nb::arg("name"), nb::arg("arrays"), nb::arg("rows"),
             "The rows of arrays, one behind the other, or in the order `rows` of 64-bit numbers.");
  module.def("windows_field", &windows_field, nb::arg("path"), nb::arg("dtype"), nb::arg("length"),
             nb::arg("stride"), nb::arg("mapped"), "Windows of the values of a file: see read_windows.");
  module.def("draws_field", &draws_field, nb::arg("name"), nb::arg("arrays"), nb::arg("shares"),
             nb::arg("seed"),
             "As many rows of each array in an epoch as its share, at random: see read_draws.");
  module.def("open_files", &open_files, nb::arg("path"), nb::arg("mapped") = false,
             "The arrays of a file, or of the files of a directory: see open_dataset.");

  nb::class_<Packing>(module, "Packing", "How samples of different lengths are put together: see Loader.")
      .def_prop_ro("most_samples", &Packing::most_samples)
      .def(
          "longest",
          [](const Packing& self, std::uint64_t epoch, std::uint64_t pack) {
            return self.plan(epoch)->packs.at(static_cast<std::size_t>(pack)).longest;
          },
          nb::arg("epoch"), nb::arg("pack"), "The values of the longest sample of a pack.")
      .def("describe", &Packing::describe, nb::arg("epoch"), nb::call_guard<Unlocked>());
  module.def("pack", &pack, nb::arg("fields"), nb::arg("values"), nb::arg("samples"), nb::arg("shuffle"),
             nb::arg("seed"), nb::arg("drop_last"), "A Packing and its fields: see read_packs.");
  module.def(
      "windows", &windows, nb::arg("like"), nb::arg("samples"), nb::arg("shuffle"), nb::arg("seed"),
      nb::arg("make"),
      "Fields whose rows come into memory window by window. `like` has an array for each field. `make` gets "
      "an epoch and a position in it, and gives the first position of its window and the window's arrays.");
  module.def("parse_bytes", &parse_bytes, nb::arg("text"), "The bytes that a text such as 8GiB means.");
}

}  // namespace penstock::python
