// Settings of modules: keys `module.PATTERN.NAME` (docs/reference-python.md). A pattern has * for
// the numbers of a path, and a value may list exceptions: "1e-05 x 47; 0.001 (blocks.7.ln1)".
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_MODULE_KEYS_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_MODULE_KEYS_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace statcollect::query {

using Config = std::map<std::string, std::string>;
inline constexpr std::string_view kNotSet = "not set";
inline constexpr std::string_view kRequiresGrad =
    "requires_grad";  // of parameters, where some are not trained

struct ChangedSetting {
  std::string module, setting, key, a, b;
};

// The settings of one module or parameter whose values are known in both runs and differ, the class
// first. Settings of modules that only one run has are ignored.
std::vector<ChangedSetting> ChangedSettings(const Config& a, const Config& b,
                                            const std::string& module);

// Whether a different module has both values, under the same key.
bool HasSameSetting(const Config& a, const Config& b, const ChangedSetting& changed,
                    std::string_view module);

// "blocks.7.ln1" for "LayerNorm_19_0th_output", if the run recorded which module such a name of
// ONNX Runtime's hooks stands for ("module_of.LayerNorm_19"); otherwise the name itself.
inline constexpr std::string_view kModuleOf = "module_of.";
std::string ModuleOf(const Config& config, std::string_view activation);

// The names under which to look up a key's modules: the pattern itself.
// If it contains *, the pattern with * for every number.
// Two if the pattern may begin with a class; none if the key is not a module's.
std::vector<std::string> LookupNames(std::string_view key);
// "blocks.*.ln1" of "blocks.12.ln1".
std::string WithStars(std::string_view module);

// Modules that the patterns of the differing keys name: the exceptions, those without *, and those
// with the numbers of the module `near`.
std::set<std::string> NamedModules(const Config& a, const Config& b, std::string_view near);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_MODULE_KEYS_H_
