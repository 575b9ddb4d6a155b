#include "loader/file_field.hpp"

#include "frameworks.hpp"
#include "interpreter_lock.hpp"
#include "loader/native_loader.hpp"
#include "storage.hpp"

#include <penstock/data/chunks.hpp>
#include <penstock/data/open_dataset.hpp>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

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

/// `rows`: of 64 bits each.
FileField chunks_field(const std::string& name, const nb::list& arrays, const nb::bytes& rows) {
  std::vector<FieldReaderPtr> chunks;
  for (const nb::handle array : arrays) {
    chunks.push_back(make_dataset({{name, nb::borrow(array)}}).reader(0));
  }
  std::vector<std::uint64_t> order(rows.size() / sizeof(std::uint64_t));
  std::memcpy(order.data(), rows.data(), order.size() * sizeof(std::uint64_t));
  return {Dataset({read_chunks(name, std::move(chunks), std::move(order))}), 0};
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
  module.def("open_files", &open_files, nb::arg("path"), nb::arg("mapped") = false,
             "The arrays of a file, or of the files of a directory: see open_dataset.");
}

}  // namespace penstock::python
