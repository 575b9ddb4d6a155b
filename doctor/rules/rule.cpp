#include "doctor/rules/rule.hpp"

#include <algorithm>

namespace penstock {

std::span<const Rule> all_rules() {
  static const std::vector<Rule> rules = [] {
    std::vector<Rule> all;
    for (const auto& part : {idle_rules(), copy_rules(), call_rules()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return rules;
}

const Rule* find_rule(std::string_view id) {
  const auto rules = all_rules();
  const auto found = std::ranges::find(rules, id, &Rule::id);
  return found != rules.end() ? &*found : nullptr;
}

std::vector<std::string> ids_that_need(Need need, std::vector<std::string> others) {
  std::vector<std::string> ids;
  for (const Rule& rule : all_rules()) {
    if (rule.needs.has(need)) ids.emplace_back(rule.id);
  }
  std::ranges::move(others, std::back_inserter(ids));
  return ids;
}

}  // namespace penstock
