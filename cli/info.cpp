#include "cli/shared/output.hpp"
#include "commands.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace penstock::cli {

namespace {

using nlohmann::json;

/// A device, with its open state and its stored profile.
struct Known {
  DeviceInfo info;
  std::optional<DeviceMemory> memory;
  std::string trouble;  ///< why it cannot be opened
  std::filesystem::path file;
  std::optional<LinkProfile> profile;
};

Known look_at(const DeviceInfo& info, const Environment& environment) {
  Known known{.info = info, .memory = {}, .trouble = {}, .file = {}, .profile = {}};
  try {
    const Device device = Device::open(info.spec, environment.device);
    known.info = device.info();
    known.memory = device.memory();
  } catch (const Error& error) {
    known.trouble = error.what();
  }
  if (environment.cache_directory) {
    known.file = LinkProfile::file_for(*environment.cache_directory, known.info);
    known.profile = stored_profile(known.file, known.info);
  }
  return known;
}

std::string profile_text(const Known& known) {
  if (!known.profile) {
    return fmt::format("none; measure the link with `penstock link --device {}`", known.info.spec);
  }
  return fmt::format("{}, measured {}: {} GB/s H2D, {} GB/s D2H", known.file.string(),
                     known.profile->measured_at, format_rate(known.profile->ceiling(CopyDirection::h2d)),
                     format_rate(known.profile->ceiling(CopyDirection::d2h)));
}

std::string line(const char* name, const std::string& value) {
  return fmt::format("  {:<13}{}\n", name, value);
}

std::string device_text(const Known& known) {
  const DeviceInfo& info = known.info;
  std::string text = fmt::format("{}  {}\n", info.spec, info.name);
  if (!known.trouble.empty()) text += line("trouble", known.trouble);
  text += line("memory", known.memory ? fmt::format("{}, {} free", format_bytes(known.memory->total),
                                                    format_bytes(known.memory->free))
                                      : format_bytes(info.memory_bytes));
  if (!info.in_host_memory) {
    text += line("compute", fmt::format("{}.{}, {} multiprocessors", info.compute_major, info.compute_minor,
                                        info.multiprocessors));
    text += line("driver", fmt::format("CUDA {}", info.driver));
    text += line("PCI", info.pci_bus_id);
    text += line("uuid", info.uuid);
  }
  text += line("link", link_text(info));
  text += line("NUMA node", info.numa_node < 0 ? "none stated" : std::to_string(info.numa_node));
  text += line("link profile", profile_text(known));
  return text;
}

json device_value(const Known& known) {
  const DeviceInfo& info = known.info;
  json value{{"spec", info.spec},
             {"backend", info.backend},
             {"name", info.name},
             {"uuid", info.uuid},
             {"driver", info.driver},
             {"pci_bus_id", info.pci_bus_id},
             {"compute", {info.compute_major, info.compute_minor}},
             {"multiprocessors", info.multiprocessors},
             {"memory_bytes", info.memory_bytes},
             {"free_bytes", nullptr},
             {"numa_node", info.numa_node},
             {"link",
              {{"generation", info.link.generation},
               {"width", info.link.width},
               {"max_generation", info.link.max_generation},
               {"max_width", info.link.max_width}}},
             {"link_profile", nullptr},
             {"trouble", known.trouble}};
  if (known.memory) value["free_bytes"] = known.memory->free;
  if (known.profile) {
    value["link_profile"] = {{"file", known.file.string()},
                             {"measured_at", known.profile->measured_at},
                             {"h2d_bytes_per_second", known.profile->ceiling(CopyDirection::h2d)},
                             {"d2h_bytes_per_second", known.profile->ceiling(CopyDirection::d2h)}};
  }
  return value;
}

std::string lock_text() {
  const auto limit = lock_limit();
  return limit ? fmt::format("{} (`ulimit -l`)", format_bytes(*limit)) : "no limit";
}

std::string all_text(const std::vector<Known>& devices, const std::vector<std::string>& missing) {
  const HostTopology& host = host_topology();
  std::string text = fmt::format("penstock {}\n\n{}\n", PENSTOCK_VERSION,
                                 host.processor.empty() ? "unknown processor" : host.processor);
  text += line("processors", fmt::format("{} usable", host.processors));
  text += line("memory", format_bytes(host.memory_bytes));
  text += line("NUMA nodes", std::to_string(host.numa_nodes));
  text += line("lockable", lock_text());
  for (const Known& known : devices) text += "\n" + device_text(known);
  if (!missing.empty()) text += "\nmissing\n";
  for (const std::string& sentence : missing) text += fmt::format("  {}\n", sentence);
  return text;
}

std::string all_json(const std::vector<Known>& devices, const std::vector<std::string>& missing) {
  const HostTopology& host = host_topology();
  json value{{"version", PENSTOCK_VERSION},
             {"host",
              {{"processor", host.processor},
               {"processors", host.processors},
               {"numa_nodes", host.numa_nodes},
               {"memory_bytes", host.memory_bytes},
               {"lockable_bytes", nullptr}}},
             {"devices", json::array()},
             {"missing", missing}};
  if (const auto limit = lock_limit()) value["host"]["lockable_bytes"] = *limit;
  for (const Known& known : devices) value["devices"].push_back(device_value(known));
  return value.dump(2, ' ', true, json::error_handler_t::replace) + "\n";
}

}  // namespace

int run_info(const InfoOptions& options, const Environment& environment) {
  OutputFile output("--json", options.json);
  std::vector<Known> devices;
  std::vector<std::string> missing;
  if (options.device.empty()) {
    const DeviceInventory inventory = Device::inventory(environment.device);
    for (const DeviceInfo& info : inventory.devices) devices.push_back(look_at(info, environment));
    missing = inventory.missing;
  } else {
    devices.push_back(look_at(Device::open(options.device, environment.device).info(), environment));
  }
  for (const Known& known : devices) output.keep_off(known.file, "a link profile");
  output.write(all_json(devices, missing));
  if (!output.is_standard_output()) print(all_text(devices, missing));
  return 0;
}

}  // namespace penstock::cli
