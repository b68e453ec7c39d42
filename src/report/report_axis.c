/* Steps are chosen so that their labels are short; a number is placed in doubles and
 * rounded by who writes it. */
#include "report/report_axis.h"

#include "base/str.h"

#include <math.h>
#include <stdio.h>

double kg_axis_place(const struct kg_axis *a, double value)
{
    double v = a->log ? log10(fmax(value, 1e-300)) : value;
    double share = a->high > a->low ? (v - a->low) / (a->high - a->low) : 0.5;

    return a->from + fmin(fmax(share, 0), 1) * (a->to - a->from);
}

double kg_axis_step(double range, int parts)
{
    double rough = range / parts, power = pow(10, floor(log10(rough)));

    for (int i = 0; i < 3; i++) {
        double step = power * (const double[]){1, 2, 5}[i];

        if (step >= rough * 0.999)
            return step;
    }
    return 10 * power;
}

static void label(char text[KG_AXIS_LABEL], double value, double step)
{
    int digits = (int)fmax(0, -floor(log10(step) + 1e-9));

    if (fabs(value) < step / 2)
        snprintf(text, KG_AXIS_LABEL, "0");
    else if (fabs(value) >= 1e6 || digits > 6)
        snprintf(text, KG_AXIS_LABEL, "%.*g",
                 (int)fmin(9, 1 + ceil(log10(fabs(value) / step) - 1e-9)), value);
    else
        snprintf(text, KG_AXIS_LABEL, "%.*f", digits, value);
}

static int linear_ticks(struct kg_axis_tick tick[KG_AXIS_TICKS], const struct kg_axis *a)
{
    double step = kg_axis_step(a->high - a->low, 5), first = ceil(a->low / step);
    int n = 0;

    for (; n < KG_AXIS_TICKS && (first + n) * step <= a->high; n++) {
        tick[n].value = (first + n) * step;
        label(tick[n].text, tick[n].value, step);
    }
    return n;
}

static int log_ticks(struct kg_axis_tick tick[KG_AXIS_TICKS], const struct kg_axis *a)
{
    static const double times[] = {1, 2, 5};
    bool short_axis = a->high - a->low < 2;
    double step = fmax(1, ceil((a->high - a->low) / 5));
    double power = short_axis ? floor(a->low) : ceil(a->low);
    int n = 0;

    for (; power <= a->high; power += step)
        for (int i = 0; i < (short_axis ? 3 : 1) && n < KG_AXIS_TICKS; i++) {
            double value = times[i] * pow(10, power);

            if (log10(value) < a->low || log10(value) > a->high)
                continue;
            tick[n].value = value;
            snprintf(tick[n].text, KG_AXIS_LABEL, "%s",
                     kg_number((char[KG_NUMBER]){0}, value, 6));
            n++;
        }
    return n;
}

int kg_axis_ticks(struct kg_axis_tick tick[KG_AXIS_TICKS], const struct kg_axis *a)
{
    int n = a->log ? log_ticks(tick, a) : linear_ticks(tick, a);

    if (!a->log || n >= 2 || !(a->high > a->low))
        return n;
    return linear_ticks(
        tick, &(struct kg_axis){.low = pow(10, a->low), .high = pow(10, a->high)});
}
