#include "loader/pictures.hpp"

#include "interpreter_lock.hpp"
#include "loader/file_field.hpp"
#include "move/rank_of_group.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/data/pictures.hpp>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

using Numbers = std::vector<double>;
using Numbers64 = std::vector<std::uint64_t>;

PictureSize size_of(const Numbers& numbers) {
  return {.width = static_cast<int>(numbers.at(1)), .height = static_cast<int>(numbers.at(0))};
}

/// `numbers`: height and width, and then the rest in the order of the members.
PictureOperation operation(const std::string& name, const Numbers& numbers) {
  if (name == "RandomResizedCrop") {
    return RandomResizedCrop{size_of(numbers), numbers.at(2), numbers.at(3), numbers.at(4), numbers.at(5)};
  }
  if (name == "ResizeShorterSide") return ResizeShorterSide{static_cast<int>(numbers.at(0))};
  if (name == "Resize") return Resize{size_of(numbers)};
  if (name == "CenterCrop") return CenterCrop{size_of(numbers)};
  if (name == "RandomCrop") return RandomCrop{size_of(numbers), static_cast<int>(numbers.at(2))};
  if (name == "RandomHorizontalFlip") return RandomHorizontalFlip{numbers.at(0)};
  if (name == "RandomVerticalFlip") return RandomVerticalFlip{numbers.at(0)};
  if (name == "ColorJitter") {
    const auto range = [&](std::size_t i) {
      return ColorJitter::Range{numbers.at(2 * i), numbers.at(2 * i + 1)};
    };
    return ColorJitter{range(0), range(1), range(2), range(3)};
  }
  if (name == "RandomGrayscale") return RandomGrayscale{numbers.at(0)};
  if (name == "RandomErasing") {
    const auto channel = [&](std::size_t i) { return static_cast<std::uint8_t>(numbers.at(5 + i)); };
    return RandomErasing{numbers.at(0), numbers.at(1), numbers.at(2),
                         numbers.at(3), numbers.at(4), {channel(0), channel(1), channel(2)}};
  }
  throw InvalidArgument("unknown operation " + name);
}

Names file_names(const nb::list& paths) {
  Names names;
  for (const nb::handle path : paths) {
    const auto encoded = nb::steal<nb::bytes>(PyUnicode_EncodeFSDefault(path.ptr()));
    if (!encoded.is_valid()) throw nb::python_error();
    names.add({encoded.c_str(), encoded.size()});
  }
  return names;
}

/// `places`: of each picture the number of the file, the offset, and the bytes; none: a picture is a file.
LabelledPictures files(const nb::list& paths, const nb::list& names, const Numbers64& places,
                       std::vector<std::int64_t> labels) {
  std::vector<PicturePlace> all;
  for (std::size_t i = 0; i < places.size(); i += 3) all.push_back({places[i], places[i + 1], places[i + 2]});
  return {.pictures = pictures_in_files(file_names(paths), std::move(all), file_names(names)),
          .labels = std::move(labels),
          .classes = {}};
}

LabelledPictures in_memory(std::vector<std::span<const std::byte>> pictures, const nb::object& owner) {
  return {
      .pictures = pictures_in_memory(std::move(pictures), keep_alive(owner)), .labels = {}, .classes = {}};
}

LabelledPictures encoded(const nb::list& encoded) {
  std::vector<std::span<const std::byte>> pictures;
  for (const nb::handle one : encoded) {
    const auto bytes = nb::cast<nb::bytes>(one);
    pictures.push_back({static_cast<const std::byte*>(bytes.data()), bytes.size()});
  }
  return in_memory(std::move(pictures), nb::tuple(encoded));
}

LabelledPictures at_addresses(const Numbers64& begins, const Numbers64& bytes, const nb::object& owner) {
  std::vector<std::span<const std::byte>> pictures;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    pictures.push_back({reinterpret_cast<const std::byte*>(begins[i]), bytes.at(i)});
  }
  return in_memory(std::move(pictures), owner);
}

nb::bytes labels(const LabelledPictures& self) {
  return nb::bytes(self.labels.data(), self.labels.size() * sizeof(std::int64_t));
}

/// `function` gives height, width, and the bytes of the pixels.
DecodedPicture decode_by(nb::handle function, std::span<const std::byte> file) {
  const Locked locked;
  return stay_if_ended([&] {
    try {
      const nb::object decoded = function(nb::bytes(file.data(), file.size()));
      const auto [height, width, pixels] = nb::cast<std::tuple<int, int, nb::bytes>>(decoded);
      const auto* const first = static_cast<const std::byte*>(pixels.data());
      return DecodedPicture{{width, height}, {first, first + pixels.size()}};
    } catch (const nb::python_error& error) {
      if (error.matches(PyExc_KeyboardInterrupt)) throw;
      throw Error(std::string("`decode` raised ") + nb::type_name(error.type()).c_str() + ": " +
                  message_of(error.value()));
    }
  });
}

PictureDecoderChoice decoder_named(const std::string& name) {
  if (name == "host") return PictureDecoderChoice::host;
  if (name == "device") return PictureDecoderChoice::device;
  if (name == "auto") return PictureDecoderChoice::automatic;
  throw InvalidArgument("`decoder` is \"host\", \"device\" or \"auto\", not \"" + name + "\".");
}

FileField field(const LabelledPictures& source,
                const std::vector<std::pair<std::string, Numbers>>& operations, bool bicubic,
                std::uint64_t seed, bool channels_last, std::shared_ptr<PictureFailures> failures,
                const std::string& memory, const nb::object& decode, const std::string& decoder,
                std::vector<std::string> libraries) {
  PictureOptions options{.operations = {},
                         .seed = seed,
                         .channels_first = !channels_last,
                         .bicubic = bicubic,
                         .memory_bytes = parse_bytes(memory),
                         .decoder = decoder_named(decoder),
                         .device_libraries = std::move(libraries),
                         .failures = std::move(failures)};
  if (!decode.is_none()) {
    options.decode = [function = decode.ptr(), owner = keep_alive(decode)](std::span<const std::byte> file) {
      return decode_by(function, file);
    };
  }
  for (const auto& [name, numbers] : operations) options.operations.push_back(operation(name, numbers));
  return {Dataset({read_pictures("image", source.pictures, std::move(options))}), 0};
}

}  // namespace

void bind_pictures(nb::module_& module) {
  nb::class_<PictureFailures>(module, "PictureFailures", "The pictures that could not be read.")
      .def(nb::init<>())
      .def_prop_ro("kept", &PictureFailures::kept, "What is wrong with each sample, of those that are kept.");

  nb::class_<LabelledPictures>(module, "EncodedPictures", "Encoded pictures; use penstock.Pictures.")
      .def_static("folder", &pictures_in_folder, nb::arg("path"), nb::call_guard<Unlocked>())
      .def_static("files", &files, nb::arg("paths"), nb::arg("names") = nb::list(),
                  nb::arg("places") = Numbers64(), nb::arg("labels") = std::vector<std::int64_t>())
      .def_static("encoded", &encoded, nb::arg("pictures"))
      .def_static("at_addresses", &at_addresses, nb::arg("begins"), nb::arg("bytes"), nb::arg("owner"))
      .def("__len__", [](const LabelledPictures& self) { return self.pictures->count(); })
      .def_prop_ro("labels", &labels, "int64, one for each picture, or none.")
      .def_prop_ro("classes",
                   [](const LabelledPictures& self) {
                     return std::vector<std::filesystem::path>(self.classes.begin(), self.classes.end());
                   })
      .def(
          "name",
          [](const LabelledPictures& self, std::uint64_t picture) {
            if (picture >= self.pictures->count()) throw nb::index_error("there are fewer pictures");
            return std::filesystem::path(self.pictures->name(picture));
          },
          nb::arg("picture"));

  module.def("decoded_suffixes", &decoded_suffixes, "Of pictures that this build decodes.");
  module.def("picture_field", &field, nb::arg("source"), nb::arg("operations"), nb::arg("bicubic"),
             nb::arg("seed"), nb::arg("channels_last"), nb::arg("failures").none(), nb::arg("memory") = "0",
             nb::arg("decode") = nb::none(), nb::arg("decoder") = "host",
             nb::arg("libraries") = std::vector<std::string>(),
             "Decodes each picture when it is read: see read_pictures.");
}

}  // namespace penstock::python
