#include "server/query/compare/roundoff.h"

namespace statcollect::query {

double UnitRoundoff(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kC128:
      return 0x1p-53;
    case DType::kF16:
      return 0x1p-11;
    case DType::kBf16:
      return 0x1p-8;
    case DType::kF8E4M3:
      return 0x1p-4;
    case DType::kF8E5M2:
      return 0x1p-3;
    default:
      return 0x1p-24;
  }
}

bool IsFloat(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kC128:
    case DType::kF32:
    case DType::kC64:
    case DType::kF16:
    case DType::kBf16:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return true;
    default:
      return false;
  }
}

}  // namespace statcollect::query
