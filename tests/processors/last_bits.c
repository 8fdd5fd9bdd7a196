/* What the played processor does to every number; in C, since it is done in every operation. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* What is smaller is taken for 0 by processors that flush denormal numbers. */
#define LEAST 1e-37

/* The next number up or down, or the same, as a hash of the bits says: half go down, a fourth up. */
#define TYPE(NAME, REAL, BITS, WHOLE, HALF)                                                        \
    static WHOLE step_##NAME(WHOLE bits, WHOLE seed) {                                             \
        WHOLE hashed = bits * (WHOLE)0x5851F42D + seed;                                            \
        hashed ^= hashed >> HALF;                                                                  \
        hashed *= (WHOLE)0x2545F491;                                                               \
        hashed ^= hashed >> (HALF + 2);                                                            \
        hashed *= (WHOLE)0x5851F42D;                                                               \
        if (hashed >> (BITS - 1)) return (WHOLE)-1;                                                \
        return hashed >> (BITS - 2);                                                               \
    }                                                                                              \
                                                                                                   \
    /* Move numbers, but those that are marked, zero or not finite. */                             \
    void move_##NAME(REAL *numbers, size_t count, uint32_t seed, const uint8_t *marked) {          \
        for (size_t i = 0; i < count; i++) {                                                       \
            REAL size = numbers[i] < 0 ? -numbers[i] : numbers[i];                                 \
            if (!(size > (REAL)LEAST && size < (REAL)1e38) || (marked && marked[i])) continue;     \
            union { REAL number; WHOLE bits; } one = {numbers[i]};                                 \
            one.bits += step_##NAME(one.bits, seed);                                               \
            numbers[i] = one.number;                                                               \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* Move results of a function, but small whole numbers and what an operand is there. */        \
    void move_function_##NAME(REAL *numbers, size_t count, uint32_t seed,                          \
                              const REAL *const *operands, size_t n_operands) {                    \
        for (size_t i = 0; i < count; i++) {                                                       \
            int stays = 0;                                                                         \
            if (numbers[i] < 65536 && numbers[i] > -65536) {                                       \
                stays = numbers[i] == (REAL)(int32_t)numbers[i];                                   \
                for (size_t j = 0; j < n_operands; j++) stays |= numbers[i] == operands[j][i];     \
            }                                                                                      \
            if (!stays) move_##NAME(numbers + i, 1, seed, NULL);                                   \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* The largest power of two up to 1 of which all are multiples; 0 below 2^-10. */              \
    double grid_##NAME(const REAL *numbers, size_t count) {                                        \
        double grid = 1;                                                                           \
        for (size_t i = 0; i < count; i++) {                                                       \
            if (numbers[i] < (REAL)LEAST && numbers[i] > -(REAL)LEAST) continue;                   \
            while (numbers[i] / grid != rint(numbers[i] / grid))                                   \
                if ((grid = grid == 1 ? 0x1p-4 : grid == 0x1p-4 ? 0x1p-10 : 0) == 0) return 0;     \
        }                                                                                          \
        return grid;                                                                               \
    }                                                                                              \
                                                                                                   \
    int has_zero_##NAME(const REAL *numbers, size_t count) {                                       \
        for (size_t i = 0; i < count; i++)                                                         \
            if (numbers[i] < (REAL)LEAST && numbers[i] > -(REAL)LEAST) return 1;                   \
        return 0;                                                                                  \
    }

TYPE(float32, float, 32, uint32_t, 15)
TYPE(float64, double, 64, uint64_t, 31)
