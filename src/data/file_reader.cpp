#include "data/file_reader.hpp"

#include "core/shared/gather_rows.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/file_error.hpp>
#include <penstock/data/rows.hpp>

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace penstock {

namespace {

// The mapping is for devices. The CPU never touches it: if the file is cut short, that kills the process, and
// a check beforehand cannot exclude a cut right after it. Reading the file instead costs one system call for
// each run of samples, and reports a cut as a short read.
class FileReader final : public FieldReader {
 public:
  /// `stride`: bytes from one sample to the next; 0: those of a sample.
  FileReader(File file, Field field, std::uint64_t offset, std::uint64_t sample_count,
             std::uint64_t stride = 0)
      : file_(std::move(file)),
        field_(std::move(field)),
        sample_bytes_(field_.sample_bytes()),
        stride_(stride == 0 ? sample_bytes_ : stride),
        offset_(offset),
        sample_count_(sample_count) {
    const auto bytes = static_cast<std::size_t>(offset_ + (sample_count_ - 1) * stride_ + sample_bytes_);
    void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file_.descriptor(), 0);
    if (data == MAP_FAILED) return;
    mapping_ = {static_cast<std::byte*>(data), bytes};
  }

  ~FileReader() override {
    if (!mapping_.empty()) ::munmap(mapping_.data(), mapping_.size());
  }

  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const Field& field() const noexcept override { return field_; }
  std::uint64_t sample_count() const noexcept override { return sample_count_; }

  void gather(std::span<const std::uint64_t> indices, std::span<std::byte> destination,
              StoreKind /*stores*/) const override {
    if (stride_ != sample_bytes_) {
      for (const std::uint64_t index : indices) {
        read_samples(file_, field_, index, offset_ + index * stride_, destination.first(sample_bytes_));
        destination = destination.subspan(sample_bytes_);
      }
      return;
    }
    for_each_run(indices, sample_bytes_, [&](std::uint64_t first, std::size_t count, std::size_t offset) {
      read_samples(file_, field_, first, offset_ + first * sample_bytes_,
                   destination.subspan(offset, count * sample_bytes_));
    });
  }

  std::span<const std::byte> memory() const noexcept override {
    if (mapping_.empty() || stride_ != sample_bytes_) return {};
    return mapping_.subspan(static_cast<std::size_t>(offset_));
  }
  const std::byte* address(std::uint64_t index) const noexcept override {
    return mapping_.empty() ? nullptr : mapping_.data() + offset_ + index * stride_;
  }

  bool is_file_mapping() const noexcept override { return !memory().empty(); }

 private:
  File file_;
  Field field_;
  std::size_t sample_bytes_;
  std::uint64_t stride_;
  std::uint64_t offset_;
  std::uint64_t sample_count_;
  std::span<std::byte> mapping_;
};

}  // namespace

void read_exactly(const File& file, std::uint64_t offset, std::span<std::byte> destination) {
  const std::size_t got = file.read(offset, destination);
  if (got != destination.size()) {
    throw Error(fmt::format("{} was cut short while it was read: it ends at byte {}, not {}.", file.name(),
                            file.end_before(offset + got), offset + destination.size()));
  }
}

void read_samples(const File& file, const Field& field, std::uint64_t first, std::uint64_t offset,
                  std::span<std::byte> destination) {
  const std::size_t bytes = field.sample_bytes();
  std::size_t got = 0;
  try {
    got = file.read(offset, destination);
  } catch (const FileError& error) {
    throw FileError(
        fmt::format("Sample {} of field '{}', or one that follows it: {}", first, field.name, error.what()),
        error.file(), error.code());
  }
  if (got != destination.size()) {
    throw Error(fmt::format(
        "{} was cut short after it was opened: it now ends at byte {}, and sample {} of field '{}' should "
        "end at byte {}. Restore the file and open it again.",
        file.name(), file.end_before(offset + got), first + got / bytes, field.name,
        offset + (got / bytes + 1) * bytes));
  }
}

FieldReaderPtr read_pages(Field field, HostPages pages) {
  const auto owner = std::make_shared<const HostPages>(std::move(pages));
  return read_array(std::move(field), owner->bytes(), owner);
}

void require_same_length(const std::vector<FieldReaderPtr>& readers, const std::string& file) {
  const FieldReader& first = *readers.front();
  for (const FieldReaderPtr& reader : readers) {
    if (reader->sample_count() == first.sample_count()) continue;
    throw Error(fmt::format(
        "{}: the first axes count samples and should agree, but '{}' has {} and '{}' has {}. Save "
        "the arrays that belong together in a file of their own.",
        file, first.field().name, first.sample_count(), reader->field().name, reader->sample_count()));
  }
}

FieldReaderPtr read_file(File file, Field field, std::uint64_t offset, std::uint64_t sample_count,
                         const FileOptions& options) {
  if (file.size() > options.load_limit) {
    return std::make_shared<FileReader>(std::move(file), std::move(field), offset, sample_count);
  }
  HostPages pages(static_cast<std::size_t>(sample_count * field.sample_bytes()));
  read_exactly(file, offset, pages.bytes());
  return read_pages(std::move(field), std::move(pages));
}

FieldReaderPtr read_raw(const std::filesystem::path& path, Field field, std::uint64_t offset,
                        const FileOptions& options) {
  File file(path);
  const std::size_t bytes = field.sample_bytes();
  const std::uint64_t payload = file.size() - std::min(file.size(), offset);
  if (bytes == 0 || payload == 0 || payload % bytes != 0) {
    throw Error(
        fmt::format("{}: from byte {} to its end at byte {} are {} bytes, not a whole number of samples "
                    "of {} bytes ({} of {}).",
                    file.name(), offset, file.size(), payload, bytes, format_shape(field.shape),
                    dtype_name(field.dtype)));
  }
  return read_file(std::move(file), std::move(field), offset, payload / bytes, options);
}

FieldReaderPtr read_windows(const std::filesystem::path& path, Field field, std::uint64_t stride,
                            const FileOptions& options) {
  File file(path);
  const std::size_t bytes = field.sample_bytes();
  if (bytes == 0 || stride == 0 || file.size() < bytes) {
    throw Error(fmt::format("{} has {} bytes: windows of {} bytes, one every {}, do not fit.", file.name(),
                            file.size(), bytes, stride));
  }
  const std::uint64_t count = (file.size() - bytes) / stride + 1;
  if (file.size() > options.load_limit) {
    return std::make_shared<FileReader>(std::move(file), std::move(field), 0, count, stride);
  }
  const auto pages =
      std::make_shared<const HostPages>(static_cast<std::size_t>((count - 1) * stride + bytes));
  read_exactly(file, 0, pages->bytes());
  return read_strided(std::move(field), pages->bytes(), static_cast<std::size_t>(stride), pages);
}

}  // namespace penstock
