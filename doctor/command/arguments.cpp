#include "cli/shared/arguments.hpp"

#include "doctor/command/doctor_command.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

namespace penstock::cli {

namespace {

constexpr auto kForms = std::to_array<std::string_view>({"run", "read", "loader"});
constexpr auto kOfRun =
    std::to_array<std::string_view>({"--record", "--verify", "--no-lines", "--no-contents"});
constexpr std::string_view kLoader = "--loader";

/// Where the form stands.
constexpr std::size_t kPlace = 2;

bool asks_for_help(const std::vector<std::string>& words) {
  return std::ranges::any_of(words, [](const std::string& word) { return word == "--help" || word == "-h"; });
}

/// True of the option alone, and with its value behind "=".
bool is_option(std::string_view word, std::string_view option) {
  return word.substr(0, word.find('=')) == option;
}

/// Of what was recorded, now or before.
void add_report(CLI::App& command, DoctorOptions& options) {
  add_file(command, "--profile", options.profile,
           "Link profile of the machine that was recorded; for a program, in place of the stored one");
  add_file(command, "--html", options.html,
           "Write a page with the account, the findings and all their places to FILE");
  add_json(command, options.json, "the verdict");
}

void add_run(CLI::App& doctor, DoctorOptions& options) {
  CLI::App* command = doctor.add_subcommand("run", "Run a CUDA program, as it is, and record it");
  add_file(*command, "--record", options.record, "Folder to keep the recordings of a program in")
      ->type_name("FOLDER");
  command->add_flag("--no-lines", options.no_lines,
                    "Record a program faster, without the lines of its calls");
  command->add_flag("--no-contents", options.no_contents,
                    "Record a program faster, without looking for the same data sent again");
  const CLI::Option* verify =
      command
          ->add_option("--verify", options.verify,
                       "Line of a shell that runs the changed program: compare what it gains with what was "
                       "predicted. Without LINE, it is the program as it is, under penstock run")
          ->type_name("[LINE]")
          ->expected(0, 1)
          ->default_str(std::string(kUnderRun));
  add_report(*command, options);
  command->callback([&options, verify] {
    if (options.command.empty()) throw CLI::RequiredError("a program behind --");
    if (verify->count() == 0) return;
    if (options.verify.empty()) throw CLI::ValidationError("--verify", "it is empty");
    if (!options.record.empty()) throw CLI::ExcludesError("--verify", "--record");
  });
  command->footer(
      "The program and its arguments stand behind --.\n"
      "Examples:\n"
      "  penstock doctor run -- python train.py --epochs 1\n"
      "  penstock doctor run --record recorded -- python train.py\n"
      "      penstock doctor read recorded   gives the report again\n"
      "  penstock doctor run --verify 'python fixed.py' -- python train.py\n"
      "      what did the change gain?\n"
      "  penstock doctor run --verify -- python train.py\n"
      "      what does penstock run gain, without a change?");
}

void add_read(CLI::App& doctor, DoctorOptions& options) {
  CLI::App* command = doctor.add_subcommand("read", "Read traces of PyTorch's profiler, or recordings");
  command
      ->add_option(
          "TRACE", options.traces,
          "Trace that PyTorch's profiler exported: .json or .json.gz; several are compared as those of "
          "ranks; or a folder that --record made, or one recording in it")
      ->type_name("")
      ->check(not_empty())
      ->required();
  add_report(*command, options);
  command->footer(
      "Examples:\n"
      "  penstock doctor read trace.json\n"
      "  penstock doctor read rank0.json rank1.json\n"
      "      who keeps the others waiting?\n"
      "  penstock doctor read trace.json --html report.html");
}

void add_measured_loader(CLI::App& doctor, DoctorOptions& options) {
  CLI::App* command =
      doctor.add_subcommand("loader", "Measure a PyTorch DataLoader, without a GPU and a model");
  command
      ->add_option("LOADER", options.loader,
                   "Python file, and in it a DataLoader or a function without arguments that returns one")
      ->type_name("FILE.py:NAME REQUIRED")
      ->check(not_empty());
  constexpr double kShortest = 0.01;
  constexpr double kLongest = 3600;
  add_time(
      *command, "--seconds", "seconds", kShortest, kLongest,
      [&options](double number) { options.seconds = number; },
      "Time of each run: two to six, and one for each number of workers (default: 2)");
  add_time(
      *command, "--step", "milliseconds", 0, kLongestMilliseconds,
      [&options](double number) { options.step_ms = number; },
      "The milliseconds that training takes for a batch, without the loader");
  add_json(*command, options.json, "the verdict");
  // CLI11 takes no colon in a positional's name, and its own complaint has the name alone.
  command->callback([&options] {
    if (options.loader.empty()) throw CLI::RequiredError("FILE.py:NAME");
  });
  command->footer(
      "Examples:\n"
      "  penstock doctor loader train.py:loader\n"
      "  penstock doctor loader train.py:make_loader --step 12\n"
      "      does it keep up with a step of 12 ms?\n"
      "It runs the Python that this command was installed into, or else the python3 of the PATH. It needs\n"
      "PyTorch and the penstock package.");
}

}  // namespace

void add_doctor(CLI::App& app, DoctorOptions& options) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Say where a training loop loses time to its data, or what limits a PyTorch DataLoader");
  command->require_subcommand(1);
  add_run(*command, options);
  add_read(*command, options);
  add_measured_loader(*command, options);
  command->footer(
      "Examples:\n"
      "  penstock doctor run -- python train.py\n"
      "  penstock doctor read trace.json\n"
      "  penstock doctor loader train.py:loader\n"
      "Each of them has more with --help. `penstock doctor -- python train.py`, `penstock doctor trace.json` "
      "and\n"
      "`penstock doctor --loader train.py:loader` mean the same.");
}

std::string_view doctor_form(const std::vector<std::string>& words, bool has_program) {
  if (words.size() <= kPlace || std::ranges::find(kForms, words[kPlace]) == kForms.end()) return "";
  // A trace or a folder may have the name of a form.
  std::error_code error;
  const bool is_alone = words.size() == kPlace + 1 || words[kPlace + 1].starts_with('-');
  if (is_alone && !has_program && !asks_for_help(words) && std::filesystem::exists(words[kPlace], error))
    return "";
  return words[kPlace];
}

std::vector<std::string> with_doctor_form(std::vector<std::string> words, bool has_program) {
  if (words.size() < kPlace || words[kPlace - 1] != "doctor") return words;
  if (!doctor_form(words, has_program).empty() || asks_for_help(words)) return words;
  const auto loader =
      std::ranges::find_if(words, [](const std::string& word) { return is_option(word, kLoader); });
  std::string form = "loader";
  if (loader == words.end()) {
    const bool runs = has_program || std::ranges::any_of(words, [](const std::string& word) {
                        return std::ranges::any_of(
                            kOfRun, [&word](std::string_view option) { return is_option(word, option); });
                      });
    form = runs ? "run" : "read";
  } else if (loader->size() > kLoader.size()) {
    loader->erase(0, kLoader.size() + 1);
  } else {
    words.erase(loader);
  }
  words.insert(words.begin() + kPlace, form);
  return words;
}

}  // namespace penstock::cli
