#include "run_command.hpp"

#include "arguments.hpp"
#include "cli/shared/output.hpp"
#include "cli/shared/signals.hpp"
#include "completion.hpp"
#include "doctor/command/doctor_command.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/log.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <sstream>

namespace penstock::cli {

namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;
constexpr int kInterrupted = 130;

Environment read_environment(const std::string& python) {
  const auto absolute = [](const char* name) -> std::optional<std::filesystem::path> {
    const char* value = std::getenv(name);
    if (value == nullptr || !std::filesystem::path(value).is_absolute()) return std::nullopt;
    return std::filesystem::path(value);
  };
  Environment environment;
  environment.python = python;
  if (const char* library = std::getenv("PENSTOCK_LIBCUDA")) environment.device.driver_library = library;
  environment.cache_directory = absolute("XDG_CACHE_HOME");
  if (!environment.cache_directory) {
    if (const auto home = absolute("HOME")) environment.cache_directory = *home / ".cache";
  }
  return environment;
}

void add_info(CLI::App& app, InfoOptions& options) {
  CLI::App* command = app.add_subcommand("info", "Print devices, links, and what is missing and why");
  add_device(*command, options.device);
  add_json(*command, options.json, "the same");
  command->footer(
      "Examples:\n"
      "  penstock info\n"
      "  penstock info --device host --json -");
}

void add_link(CLI::App& app, LinkOptions& options) {
  CLI::App* command = app.add_subcommand("link", "Measure the link, and store its profile");
  CLI::Option* device = add_device(*command, options.device);
  constexpr int kMostDevices = 64;
  command
      ->add_option("--devices", options.devices,
                   "Two devices or more, in place of --device: how fast they receive together and from each "
                   "other")
      ->type_name("SPECS")
      ->expected(2, kMostDevices)
      ->excludes(device);
  command->add_flag("--quick", options.quick,
                    "Seconds instead of half a minute, with copies of up to 256 MiB");
  CLI::Option* most = add_bytes(*command, "--max-bytes", options.max_bytes, "Largest copy (default: 1GiB)");
  add_count(*command, "--repetitions", options.repetitions, 1, 100000, "Most repetitions of a point",
            "as time allows");
  add_json(*command, options.json, "everything measured");
  CLI::Option* no_store = command->add_flag_callback(
      "--no-store", [&options] { options.store = false; }, "Leave the stored profile as it is");
  add_file(*command, "--profile", options.profile, "Store the profile here instead of in the user's cache")
      ->excludes(no_store);
  command->callback([&options, most] {
    constexpr std::size_t kQuickBytes = 256 * kMiB;
    if (options.quick && most->count() == 0) options.max_bytes = kQuickBytes;
  });
  command->footer(
      "Examples:\n"
      "  penstock link\n"
      "      measure the first GPU's link, and store its profile\n"
      "  penstock link --device host --quick\n"
      "  penstock link --devices cuda:0 cuda:1\n"
      "      the same for a group of GPUs\n"
      "  penstock link --no-store --json link.json\n"
      "      only look");
}

void add_run(CLI::App& app, RunOptions& options) {
  CLI::App* command =
      app.add_subcommand("run", "Run a program, and make its copies of pageable memory faster");
  command->add_flag("--library", options.library,
                    "Print the path of the library that takes the copies, for LD_PRELOAD, and run nothing");
  command
      ->add_option("--report", options.report,
                   "Say what was taken so far of the program that runs as this process, and run nothing")
      ->type_name("PID")
      ->check(CLI::PositiveNumber);
  command->add_flag("--feed", options.feed,
                    "Copy the batches of PyTorch's DataLoaders ahead of the loop, too, by penstock.feed");
  add_json(*command, options.json, "what was taken and what was passed on");
  command->footer(
      "Examples:\n"
      "  penstock run -- python train.py\n"
      "  penstock run --json run.json -- python train.py\n"
      "  penstock run --feed -- python train.py\n"
      "      its DataLoaders' batches are on the GPU before it asks for them\n"
      "  LD_PRELOAD=$(penstock run --library) python train.py\n"
      "      the same without a report");
}

/// `penstock doctor` and `penstock run` run what stands behind their first "--".
std::vector<std::string> split_off_program(const std::vector<std::string>& arguments,
                                           std::string_view command, std::vector<std::string>& program) {
  if (arguments.size() < 2 || arguments[1] != command) return arguments;
  const auto at = std::find(arguments.begin(), arguments.end(), "--");
  if (at == arguments.end()) return arguments;
  program.assign(at + 1, arguments.end());
  if (program.empty())
    throw UsageError(fmt::format("no program behind --; write penstock {} -- python train.py", command));
  return {arguments.begin(), at};
}

int complain(std::string what, int code) {
  std::replace(what.begin(), what.end(), '\n', ' ');
  say(fmt::format("penstock: {}\n", what));
  return code;
}

/// What to write if these words are a program to run. Empty if the first one is a trace, or a folder with an
/// option behind it: a folder may be named as a program is.
std::string program_hint(const std::string& form, const std::vector<std::string>& words) {
  if (words.empty()) return "";
  const std::string& first = words.front();
  std::error_code error;
  const bool has_option = words.size() > 1 && words[1].starts_with('-');
  const bool is_folder = has_option && std::filesystem::is_directory(first, error);
  if (first.starts_with('-') || first.ends_with(".json") || first.ends_with(".gz") || is_folder) return "";
  return fmt::format("; to run a program, write penstock {}-- {}{}", form,
                     first.ends_with(".py") ? "python " : "", fmt::join(words, " "));
}

void add_completion(CLI::App& app) {
  const auto print_script = [](const std::string& shell) {
    print(completion_script(shell));
    throw CLI::Success();
  };
  app.add_option_function<std::string>("--completion", print_script,
                                       "Print a shell's completion: eval \"$(penstock --completion bash)\"")
      ->type_name("SHELL")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

/// What the user wrote wrongly, and where to look.
std::string usage_text(const CLI::ParseError& error, const std::vector<std::string>& arguments,
                       const std::vector<CLI::App*>& commands) {
  const std::string first = arguments.size() > 1 ? arguments[1] : "-";
  const bool is_command =
      std::ranges::any_of(commands, [&](CLI::App* command) { return command->get_name() == first; });
  if (!is_command && first[0] != '-') return fmt::format("unknown command '{}'; see penstock --help", first);
  std::string text = error.what();
  std::string form = is_command ? first + " " : "";
  if (first == "run" && dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    text += program_hint(form, {arguments.begin() + 2, arguments.end()});
  if (first == "doctor") {
    const bool has_program = std::ranges::find(arguments, "--") != arguments.end();
    const std::string_view named = doctor_form(arguments, has_program);
    if (!named.empty()) form += fmt::format("{} ", named);
    const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
    if (is_extra && (named.empty() || named == "run"))
      text += program_hint(form, {arguments.begin() + (named.empty() ? 2 : 3), arguments.end()});
  }
  return text + fmt::format("; see penstock {}--help", form);
}

/// Called from any thread, also while a progress bar is drawn.
void warn(std::string_view message) {
  if (::isatty(STDERR_FILENO) != 0) draw("\r\033[K");
  say(fmt::format("penstock: warning: {}\n", message));
}

/// The help or version that the user asked for.
std::string answer(const CLI::App& app, const CLI::Success& success) {
  std::ostringstream text;
  app.exit(success, text, text);
  return text.str();
}

int run(const std::vector<std::string>& arguments, const std::string& python) {
  CLI::App app("Feeds GPUs: moves data from CPU memory to a GPU as fast as the link allows.", "penstock");
  app.set_version_flag("--version", "penstock " PENSTOCK_VERSION);
  app.require_subcommand(1);
  add_completion(app);
  app.footer(
      "Examples:\n"
      "  penstock info\n"
      "      devices, links, and what is missing\n"
      "  penstock link\n"
      "      measure the link once; feed uses the result\n"
      "  penstock feed images.npy\n"
      "      feed a dataset, and say where the time went\n"
      "  penstock run -- python train.py\n"
      "      run a program with faster copies\n"
      "  penstock doctor run -- python train.py\n"
      "      where a program loses time to its data\n"
      "  penstock doctor read trace.json\n"
      "      the same from a trace of PyTorch's profiler\n"
      "  penstock doctor loader train.py:loader\n"
      "      what limits a PyTorch DataLoader\n"
      "Each command has more with --help.");
  InfoOptions info;
  LinkOptions link;
  FeedOptions feed;
  DoctorOptions doctor;
  RunOptions run_options;
  feed.command_line = arguments;
  std::vector<std::string> own = split_off_program(arguments, "doctor", doctor.command);
  own = split_off_program(own, "run", run_options.command);
  own = with_doctor_form(std::move(own), !doctor.command.empty());
  if (const char* recorder = std::getenv("PENSTOCK_RECORDER")) doctor.recorder = recorder;
  add_info(app, info);
  add_link(app, link);
  add_feed(app, feed);
  add_run(app, run_options);
  add_doctor(app, doctor);
  if (arguments.size() > 1 && arguments[1] == "--complete") {
    print(completions(app, {arguments.begin() + 2, arguments.end()}));
    return 0;
  }
  const auto commands = app.get_subcommands({});
  try {
    app.parse(std::vector<std::string>(own.rbegin(), own.rend() - 1));  // the last one first
  } catch (const CLI::Success& success) {
    print(answer(app, success));
    return 0;
  } catch (const CLI::ParseError& error) {
    return complain(usage_text(error, arguments, commands), kUsage);
  }
  if (app.got_subcommand("run")) return run_run(run_options);
  const Environment environment = read_environment(python);
  if (app.got_subcommand("doctor")) return run_doctor(doctor, environment);
  if (app.got_subcommand("info")) return run_info(info, environment);
  if (app.got_subcommand("link")) return run_link(link, environment);
  return run_feed(feed, environment);
}

}  // namespace

int run_command(const std::vector<std::string>& arguments, const std::string& python) {
  prepare_standard_streams();
  set_log_sink(warn);
  try {
    return run(arguments, python);
  } catch (const Interrupted& interrupted) {
    return complain(fmt::format("interrupted; {}", interrupted.outcome), kInterrupted);
  } catch (const UsageError& error) {
    return complain(error.what(), kUsage);
  } catch (const std::bad_alloc&) {
    return complain("There is not enough host memory for this.", kFailure);
  } catch (const std::exception& error) {
    return complain(error.what(), kFailure);
  }
}

}  // namespace penstock::cli
