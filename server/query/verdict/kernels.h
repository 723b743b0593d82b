// How coarsely a module's own kernel may round. docs/verdict.md derives the figures.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_KERNELS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_KERNELS_H_

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "common/records.h"
#include "server/query/settings/module_keys.h"

namespace statcollect::query {

// Which passes of a convolution two runs may compute by different algorithms.
enum class OtherConvolutions : std::uint8_t { kNone, kForward, kAll };

// Of runs with these configurations: another library or device, or an algorithm that is chosen by the batch's
// size or by measured times.
OtherConvolutions ConvolutionsThatMayDiffer(const Config& a, const Config& b);

// Whether a module of this class has a derivative that leaps: ReLU, LeakyReLU, Hardtanh ...
bool HasKink(std::string_view class_name);

// The lengths of the sums that modules compute, by the shapes of their matrices. All results are relative to
// the norm of the tensor that is computed (of a sum that cancels, to that of its terms).
class Kernels {
 public:
  explicit Kernels(OtherConvolutions other) : other_(other) {}

  // A module's output, a parameter or its gradient; the name must outlive this. Others are ignored.
  void Note(const TensorDef& def, const Layout& layout);

  // Rounding of the module's output, and of what it passes back; at least `unit`, the roundoff of the result.
  double OfOutput(std::string_view module, double unit) const;
  double OfInputGradient(std::string_view module, double unit) const;
  // Of a parameter's gradient, a sum over a batch. `unit`: of what is summed, the coarsest. `terms`: elements
  // of the gradients of the module's outputs.
  double OfParameterGradient(std::string_view module, const Layout& layout, double unit, double terms) const;

 private:
  struct Module {
    double by_first = 1, by_second = 1;  // elements of its matrix for each row and each column
    bool winograd = false;               // such an algorithm exists for its matrix
    bool transposed = false;             // has columns as outputs
    bool copies = false;                 // sums nothing
  };
  const Module* Find(std::string_view module) const;
  static double Rounding(double terms, bool winograd, double unit);

  const OtherConvolutions other_;
  std::unordered_map<std::string_view, Module> modules_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_KERNELS_H_
