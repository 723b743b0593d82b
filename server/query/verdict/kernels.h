// Bounds on the rounding of a module's own kernel. docs/verdict-model.md derives the numbers.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_KERNELS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_KERNELS_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>

#include "common/records.h"
#include "server/query/settings/module_keys.h"

namespace statcollect::query {

// The passes of a convolution that two runs may compute with different algorithms.
enum class OtherConvolutions : std::uint8_t { kNone, kForward, kAll };

// From the runs' configurations: a different library or device, or an algorithm chosen by the batch size or
// by benchmarking.
OtherConvolutions ConvolutionsThatMayDiffer(const Config& a, const Config& b);

// Whether a Winograd algorithm exists for a filter of this shape: 3x3 and more.
bool AllowsWinograd(std::span<const std::int64_t> shape);

// Whether the derivative of this module class is discontinuous: ReLU, LeakyReLU, Hardtanh ...
bool HasKink(std::string_view class_name);

// Knows from the shapes of modules' matrices how long the sums are that they compute. All results are
// relative to the norm of the computed tensor; for a sum that cancels, to the norm of its terms.
class Kernels {
 public:
  explicit Kernels(OtherConvolutions other) : other_(other) {}

  // Takes a module's output, a parameter or its gradient; other kinds are ignored. The name must outlive
  // this.
  void Note(const TensorDef& def, const Layout& layout);

  // Rounding of the module's output, and of the gradient that it passes back; at least `unit`, the roundoff
  // of the result.
  double OfOutput(std::string_view module, double unit) const;
  double OfInputGradient(std::string_view module, double unit) const;
  // Rounding of a parameter's gradient, which is a sum over the batch. `unit`: the coarsest roundoff of its
  // terms. `terms`: number of elements of the gradients of the module's outputs.
  double OfParameterGradient(std::string_view module, const Layout& layout, double unit, double terms) const;

 private:
  struct Module {
    double by_first = 1, by_second = 1;  // elements of its matrix in each row and in each column
    double normalised = 1;    // elements of a channel that a BatchNorm takes the mean of, in training
    bool winograd = false;    // a Winograd algorithm exists for its matrix
    bool transposed = false;  // its outputs are the columns
    bool copies = false;      // its outputs are copies, not sums
  };
  const Module* Find(std::string_view module) const;
  static double Rounding(double terms, bool winograd, double unit);

  const OtherConvolutions other_;
  std::unordered_map<std::string_view, Module> modules_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_KERNELS_H_
